"""Output of commands: tables and colours in a terminal, plain lines in a pipe, JSON with --json; and their errors."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

GIB = 2**30


def print_line(text: str) -> None:
    """One line to stdout."""
    typer.echo(text)


def print_stderr(text: str) -> None:
    """One line to stderr."""
    typer.echo(f"onyx: {text}", err=True)


def print_json(value: Any) -> None:
    """JSON to stdout, indented in a terminal."""
    typer.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings; plain text columns in a pipe."""
    if sys.stdout.isatty():
        _print_rich_table(columns, rows)
        return
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    for row in (columns, *rows):
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    rich_table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        rich_table.add_row(*map(escape, row))
    Console().print(rich_table)


def gigabytes(size: float | None) -> str:
    """Bytes as `1.50 GiB`, or a dash for None."""
    return "–" if size is None else f"{size / GIB:.2f} GiB"


def number(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits, or a dash for None."""
    return "–" if value is None else f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    """Seconds as `1:02:03` or `2:03`, or a dash for None."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option("--url", envvar="ONYX_URL", help="Address of the service.")]
Key = Annotated[
    str | None, typer.Option("--key", envvar="ONYX_API_KEY", help="The API key.", show_envvar=True, show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Write only JSON to stdout.")]
JobId = Annotated[str, typer.Argument(help="The job's id.")]

USAGE = 2
"""The exit status of a command with wrong arguments or settings."""


class CommandError(Exception):
    """Ends a command: one line for the user on stderr, and an exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class ServiceError(CommandError):
    """The service answered with an error status."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
        """The HTTP status."""


class UnreachableError(CommandError):
    """No service answers at the address."""

"""What commands write: tables and colours for a terminal, plain lines for a pipe, JSON where it is asked for."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

GIB = 2**30


def say(text: str) -> None:
    """A line on stdout."""
    typer.echo(text)


def complain(text: str) -> None:
    """A line on stderr."""
    typer.echo(f"onyx: {text}", err=True)


def emit(value: Any) -> None:
    """JSON on stdout, indented for a reader."""
    typer.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings; in a pipe as columns of plain text."""
    if sys.stdout.isatty():
        _rich_table(columns, rows)
        return
    widths = [max(len(row[place]) for row in (columns, *rows)) for place in range(len(columns))]
    for row in (columns, *rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*map(escape, row))
    Console().print(drawn)


def gigabytes(size: float | None) -> str:
    """Bytes, for people."""
    return "–" if size is None else f"{size / GIB:.2f} GiB"


def number(value: float | None, digits: int = 4) -> str:
    """A measured value, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    """Time, for people."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option("--url", envvar="ONYX_URL", help="Where the service is.")]
Key = Annotated[
    str | None, typer.Option("--key", envvar="ONYX_API_KEY", help="The API key.", show_envvar=True, show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, and nothing else, to stdout.")]
JobId = Annotated[str, typer.Argument(help="The job's id.")]


USAGE = 2
"""The exit status of a command that was asked for wrongly."""


class CommandFailure(Exception):  # noqa: N818 (not an error of this program)
    """A sentence for the user, and an exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class ServiceFailure(CommandFailure):
    """The service answered, and the answer is no."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
        """The HTTP status."""


class AwayFailure(CommandFailure):
    """Nobody answers."""

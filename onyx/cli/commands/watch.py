"""`onyx jobs watch`: follows a job until it has ended, with a progress bar in a terminal and plain lines elsewhere."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import typer

from onyx.cli.client import ServiceClient, follow
from onyx.cli.job_summary import percent, progress_line, sparkline
from onyx.cli.output import (
    DEFAULT_URL,
    JobId,
    Json,
    Key,
    UnreachableError,
    Url,
    duration,
    number,
    print_line,
    print_stderr,
)
from onyx.training.contract import event_kinds

if TYPE_CHECKING:
    from rich.console import RenderableType

POLL_SECONDS = 0.5
"""The shortest time between two requests for the job itself."""

LINE_SECONDS = 5.0
"""The shortest time between two progress lines outside of a terminal."""


class View(Protocol):
    """Shows a job to the user."""

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the job."""

    def progress(self, job: dict[str, Any], losses: list[float]) -> None:
        """Show the job's progress."""

    def note(self, text: str) -> None:
        """Show that the service stopped answering."""


def watch(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Follow a job until it has ended. Exit status 1 unless it succeeded."""
    watch_until_done(ServiceClient(url, key), job_id, as_json)


def watch_until_done(service: ServiceClient, job_id: str, as_json: bool) -> None:
    """Follow a job in the view that fits where stdout goes."""
    if as_json:
        job = observe(service, job_id, JsonView())
        print_line(json.dumps(job, ensure_ascii=False))
    elif sys.stdout.isatty():
        with bar_view() as view:
            job = observe(service, job_id, view)
    else:
        job = observe(service, job_id, PlainView())
    if not as_json:
        _print_summary(job)
    if job["status"] != "succeeded":
        raise typer.Exit(1)


def observe(service: ServiceClient, job_id: str, view: View) -> dict[str, Any]:
    """Show a job until it has ended, and return it."""
    losses: list[float] = []
    last_poll = 0.0
    for event in follow(service, job_id, on_disconnect=view.note):
        if event["kind"] == event_kinds.METRICS:
            if event["data"].get("loss") is not None:
                losses.append(event["data"]["loss"])
        else:
            view.event(event)
        if time.monotonic() - last_poll >= POLL_SECONDS:
            last_poll = time.monotonic()
            with suppress(UnreachableError):  # `follow` reports it and reconnects
                view.progress(dict(service.get(f"/training/{job_id}")), losses)
    job = dict(service.get(f"/training/{job_id}"))
    view.progress(job, losses)
    return job


class JsonView:
    """One JSON object a line."""

    def event(self, event: dict[str, Any]) -> None:
        print_line(json.dumps(event, ensure_ascii=False))

    def progress(self, job: dict[str, Any], losses: list[float]) -> None:
        """Nothing: the last line is the whole job."""

    def note(self, text: str) -> None:
        print_stderr(text)


class PlainView:
    """Lines for a log."""

    def __init__(self) -> None:
        self._last_line = ""
        self._last_time = 0.0

    def event(self, event: dict[str, Any]) -> None:
        print_line(event_line(event))

    def progress(self, job: dict[str, Any], losses: list[float]) -> None:
        line = progress_line(job)
        if line and line != self._last_line and time.monotonic() - self._last_time >= LINE_SECONDS:
            self._last_line, self._last_time = line, time.monotonic()
            print_line(line)

    def note(self, text: str) -> None:
        print_stderr(text)


class BarView:
    """A progress bar at the bottom of the terminal; events scroll above it."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def event(self, event: dict[str, Any]) -> None:
        colour = {"warning": "yellow", "error": "red"}.get(event["level"])
        self._live.console.print(event_line(event), style=colour, markup=False, highlight=False)

    def progress(self, job: dict[str, Any], losses: list[float]) -> None:
        self._live.update(bar(job, losses))

    def note(self, text: str) -> None:
        self._live.console.print(text, style="yellow", markup=False, highlight=False)


@contextmanager
def bar_view() -> Iterator[BarView]:
    """A BarView that is drawn in this terminal until the block ends."""
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        yield BarView(live)


def bar(job: dict[str, Any], losses: list[float]) -> "RenderableType":
    """Status, progress bar and loss sparkline of a job, and below them its progress line."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    done = percent(job)
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        Text(f"{job['status']:<10}", style="bold"),
        ProgressBar(total=100, completed=done or 0.0, width=28, pulse=done is None),
        Text(sparkline(losses), style="cyan"),
    )
    rows = Table.grid()
    rows.add_row(grid)
    rows.add_row(Text(progress_line(job), style="dim"))
    return rows


def event_line(event: dict[str, Any]) -> str:
    level = "" if event["level"] == "info" else f"{event['level']}: "
    return f"{time.strftime('%H:%M:%S', time.localtime(event['time']))}  {level}{event['message']}"


def _print_summary(job: dict[str, Any]) -> None:
    if job["status"] != "succeeded":
        print_stderr(f"{job['training_id']} {job['status']}" + (f": {job['error']}" if job["error"] else ""))
        return
    print_line(
        f"{job['training_id']} succeeded in {duration(job['training_time'])}, best loss {number(job['best_loss'])}; "
        f"get the model with: onyx jobs download {job['training_id']}"
    )

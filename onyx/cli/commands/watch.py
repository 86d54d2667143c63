"""`onyx jobs watch`: a job as it goes, with a bar in a terminal and in plain lines elsewhere."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import typer

from onyx.cli.client import Service, follow
from onyx.cli.job_summary import figures, percent, sparkline
from onyx.cli.output import DEFAULT_URL, AwayFailure, JobId, Json, Key, Url, complain, duration, number, say
from onyx.training.contract import event_kinds

if TYPE_CHECKING:
    from rich.console import RenderableType

LOOK_SECONDS = 0.5
"""At least so long between two looks at the job itself."""

LINE_SECONDS = 5.0
"""At least so long between two lines of progress that are not in a terminal."""


class View(Protocol):
    """Where a job is shown."""

    def event(self, event: dict[str, Any]) -> None:
        """Something happened."""

    def progress(self, job: dict[str, Any], losses: list[float]) -> None:
        """It is further."""

    def note(self, text: str) -> None:
        """Something about the connection."""


def watch(job_id: JobId, url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Follow a job until it is over. Exit status 1 unless it succeeded."""
    watch_to_the_end(Service(url, key), job_id, as_json)


def watch_to_the_end(service: Service, job_id: str, as_json: bool) -> None:
    """The same for a command that has just made the job."""
    if as_json:
        job = observe(service, job_id, JsonView())
        say(json.dumps(job, ensure_ascii=False))
    elif sys.stdout.isatty():
        with bar_view() as view:
            job = observe(service, job_id, view)
    else:
        job = observe(service, job_id, PlainView())
    if not as_json:
        _sum_up(job)
    if job["status"] != "succeeded":
        raise typer.Exit(1)


def observe(service: Service, job_id: str, view: View) -> dict[str, Any]:
    """Show a job until it is over, and return it."""
    losses: list[float] = []
    looked = 0.0
    for event in follow(service, job_id, on_away=view.note):
        if event["kind"] == event_kinds.METRICS:
            if event["data"].get("loss") is not None:
                losses.append(event["data"]["loss"])
        else:
            view.event(event)
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            job = _look(service, job_id)
            if job is not None:
                view.progress(job, losses)
    job = dict(service.get(f"/training/{job_id}"))
    view.progress(job, losses)
    return job


def _look(service: Service, job_id: str) -> dict[str, Any] | None:
    try:
        return dict(service.get(f"/training/{job_id}"))
    except AwayFailure:
        return None  # the events will tell when it is back


class JsonView:
    """One JSON object a line."""

    def event(self, event: dict[str, Any]) -> None:
        say(json.dumps(event, ensure_ascii=False))

    def progress(self, job: dict[str, Any], losses: list[float]) -> None:
        """The final answer has it all."""

    def note(self, text: str) -> None:
        complain(text)


class PlainView:
    """Lines for a log."""

    def __init__(self) -> None:
        self._told_at = 0.0
        self._told = ""

    def event(self, event: dict[str, Any]) -> None:
        say(event_line(event))

    def progress(self, job: dict[str, Any], losses: list[float]) -> None:
        line = figures(job)
        if line and line != self._told and time.monotonic() - self._told_at >= LINE_SECONDS:
            self._told_at, self._told = time.monotonic(), line
            say(line)

    def note(self, text: str) -> None:
        complain(text)


class BarView:
    """A bar that stays at the bottom; events scroll by above it."""

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
    """A bar in this terminal."""
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        yield BarView(live)


def bar(job: dict[str, Any], losses: list[float]) -> "RenderableType":
    """The bar, the figures and the losses of a job."""
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
    whole = Table.grid()
    whole.add_row(grid)
    whole.add_row(Text(figures(job), style="dim"))
    return whole


def event_line(event: dict[str, Any]) -> str:
    mark = "" if event["level"] == "info" else f"{event['level']}: "
    return f"{time.strftime('%H:%M:%S', time.localtime(event['time']))}  {mark}{event['message']}"


def _sum_up(job: dict[str, Any]) -> None:
    if job["status"] != "succeeded":
        complain(f"{job['training_id']} {job['status']}" + (f": {job['error']}" if job["error"] else ""))
        return
    say(
        f"{job['training_id']} succeeded in {duration(job['training_time'])}, best loss {number(job['best_loss'])}; "
        f"get the model with: onyx jobs download {job['training_id']}"
    )

"""The journal: which changes of steering took effect at which window.

Its lines are the "memory" and "config" events of an attempt, written before the step that they concern. A later
attempt that does a window again obeys them, so that it cuts the window as it was cut then: same bits.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onyx.training.attempt import attempt_dir
from onyx.training.events import Events, Kind, Level, read_events
from onyx.training.progress import Steering
from onyx.training.spec import Frozen


class Line(Frozen):
    """A change of steering."""

    window: int
    """The first window that it holds for."""

    budgets: tuple[int, ...] | None = None
    """For a change of memory: the budgets from then on."""

    samples: int | None = None
    """For a change of config: samples of one update from then on,"""

    clipping: float | None = None
    """and its clipping,"""

    config: int = 0
    """and its number."""

    def applied(self, steering: Steering) -> Steering:
        """Budgets only ever fall, and only the newest config counts: so obeying a line twice changes nothing."""
        if self.budgets is not None and len(self.budgets) == len(steering.budgets):
            lower = tuple(min(pair) for pair in zip(self.budgets, steering.budgets, strict=True))
            return steering.model_copy(update={"budgets": lower})
        if self.samples is not None and self.config > steering.config:
            change = {"window": self.samples, "clipping": self.clipping, "config": self.config}
            return steering.model_copy(update=change)
        return steering


class Journal:
    """What former attempts wrote down about windows that are still to be done, and what this one adds."""

    def __init__(self, events: Events, lines: Sequence[Line] = ()) -> None:
        self.events = events
        self.lines = list(lines)

    @property
    def config(self) -> int:
        """The newest change of config that is written down, obeyed already or not."""
        return max((line.config for line in self.lines), default=0)

    def obeyed(self, steering: Steering, window: int) -> Steering:
        """The steering that holds for this window."""
        for line in self.lines:
            if line.window == window:
                steering = line.applied(steering)
        return steering

    def memory(
        self, window: int, budgets: tuple[int, ...], message: str, details: Mapping[str, Any] | None = None
    ) -> Line:
        return self._write("memory", message, Line(window=window, budgets=budgets), details or {})

    def config_change(self, window: int, samples: int, clipping: float | None, number: int) -> Line:
        limit = "no clipping" if clipping is None else f"clipping at {clipping:g}"
        line = Line(window=window, samples=samples, clipping=clipping, config=number)
        message = f"from window {window} on: {samples} samples an update, {limit}"
        return self._write("config", message, line, {})

    def _write(self, kind: Kind, message: str, line: Line, details: Mapping[str, Any]) -> Line:
        level: Level = "warn" if kind == "memory" else "info"
        self.events.say(kind, message, {**details, **line.model_dump()}, safe=True, level=level)
        self.lines.append(line)
        return line


def read_journal(job_dir: Path, before: int) -> list[Line]:
    """The lines of all attempts before this one, in the order in which they were written."""
    events = [event for number in range(1, before) for event in read_events(_path(job_dir, number), "memory", "config")]
    return [_line(event.data) for event in events if "window" in event.data]


def dump(lines: Sequence[Line]) -> str:
    return json.dumps([line.model_dump() for line in lines])


def load(text: str) -> list[Line]:
    return [Line.model_validate(line) for line in json.loads(text)]


def _line(data: Mapping[str, Any]) -> Line:
    """An event says more than steers."""
    return Line.model_validate({name: data[name] for name in Line.model_fields if name in data})


def _path(job_dir: Path, number: int) -> Path:
    return attempt_dir(job_dir, number) / "events.jsonl"

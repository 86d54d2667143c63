"""The journal: every change of steering, and the place in the job from which it holds.

Its lines are events of an attempt: "memory", "config", and the message that a step is not compiled. Rank 0 writes a
line to the disk before any number that depends on it is kept or acted upon. A later attempt that does a window, an
evaluation or a stretch of the reference again obeys the lines, so that it is cut as it was cut then: same bits.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import attempt_dir
from onyx.training.contract.event_kinds import RankEventKind
from onyx.training.contract.spec import Frozen
from onyx.training.state.events import Events, Level, read_events
from onyx.training.state.progress import Steering

JOURNAL_KINDS: tuple[RankEventKind, ...] = (event_kinds.MEMORY, event_kinds.CONFIG, event_kinds.MESSAGE)


class Place(Frozen):
    """A place in the job, between what was done before a change of steering and what it holds for."""

    window: int
    """The first window that it holds for."""

    evaluation: bool = False
    """Whether it holds for the evaluation that comes just before this window, too."""

    stretch: int | None = None
    """The first stretch of the reference that it holds for; None where it holds for none."""


class Line(Place):
    """A change of steering."""

    budgets: tuple[int, ...] | None = None
    """For a change of memory: the budgets from then on."""

    samples: int | None = None
    """For a change of config: samples of one update from then on,"""

    clipping: float | None = None
    """and its clipping,"""

    config: int = 0
    """and its number."""

    eager: bool = False
    """Whether the step is not compiled from then on."""

    def applied(self, steering: Steering) -> Steering:
        """Budgets only ever fall, and only the newest config counts: so obeying a line twice changes nothing."""
        if self.eager:
            steering = steering.model_copy(update={"eager": True})
        if self.budgets is not None:
            return steering.model_copy(update={"budgets": self.lowered(steering.budgets)})
        if self.samples is not None and self.config > steering.config:
            change = {"window": self.samples, "clipping": self.clipping, "config": self.config}
            return steering.model_copy(update=change)
        return steering

    def lowered(self, budgets: tuple[int, ...]) -> tuple[int, ...]:
        """The lower of these budgets and its own, rank by rank. Another number of ranks has budgets of its own."""
        if self.budgets is None or len(self.budgets) != len(budgets):
            return budgets
        return tuple(min(pair) for pair in zip(self.budgets, budgets, strict=True))


class Journal:
    """What former attempts wrote down about windows that are still to be done, and what this one adds."""

    def __init__(self, events: Events, lines: Sequence[Line] = ()) -> None:
        self.events = events
        self.lines = list(lines)

    @property
    def config(self) -> int:
        """The newest change of config that is written down, obeyed already or not."""
        return max((line.config for line in self.lines), default=0)

    def steering_for(self, steering: Steering, window: int, *, evaluation: bool = False) -> Steering:
        """The steering that holds for this window, or for the evaluation that comes just before it."""
        for line in self.lines:
            if line.window == window and (line.evaluation or not evaluation):
                steering = line.applied(steering)
        return steering

    def budgets_of_stretch(self, planned: tuple[int, ...], stretch: int) -> tuple[int, ...]:
        """The budgets that hold for a stretch of the reference: a function of the plan and the journal alone.

        They are not those of the window at hand: a stretch that must be computed again is cut as it was the first time.
        """
        for line in self.lines:
            if line.stretch is not None and line.stretch <= stretch:
                planned = line.lowered(planned)
        return planned

    def memory(
        self,
        place: Place,
        budgets: tuple[int, ...],
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        eager: bool = False,
    ) -> Line:
        line = Line(**place.model_dump(), budgets=budgets, eager=eager)
        return self._write(event_kinds.MEMORY, message, line, details or {})

    def not_compiled(self, place: Place, message: str) -> Line:
        return self._write(event_kinds.MESSAGE, message, Line(**place.model_dump(), eager=True), {})

    def config_change(self, window: int, samples: int, clipping: float | None, number: int) -> Line:
        limit = "no clipping" if clipping is None else f"clipping at {clipping:g}"
        line = Line(window=window, samples=samples, clipping=clipping, config=number)
        message = f"from window {window} on: {samples} samples an update, {limit}"
        return self._write(event_kinds.CONFIG, message, line, {})

    def _write(self, kind: RankEventKind, message: str, line: Line, details: Mapping[str, Any]) -> Line:
        level: Level = "info" if kind == event_kinds.CONFIG else "warn"
        self.events.emit(kind, message, {**details, **_said(line)}, durable=True, level=level)
        self.lines.append(line)
        return line


def read_journal(job_dir: Path, before: int) -> list[Line]:
    """The lines of all attempts before this one, in the order in which they were written."""
    paths = [_path(job_dir, number) for number in range(1, before)]
    events = [event for path in paths for event in read_events(path, *JOURNAL_KINDS)]
    return [_line(event.data) for event in events if "window" in event.data]


def dump(lines: Sequence[Line]) -> str:
    return json.dumps([line.model_dump() for line in lines])


def load(text: str) -> list[Line]:
    return [Line.model_validate(line) for line in json.loads(text)]


def _said(line: Line) -> dict[str, Any]:
    """Without what says nothing: most lines hold from a window on, and compile as before."""
    silent = {
        name for name in ("evaluation", "stretch", "eager") if getattr(line, name) is Line.model_fields[name].default
    }
    return line.model_dump(exclude=silent)


def _line(data: Mapping[str, Any]) -> Line:
    """An event says more than steers."""
    return Line.model_validate({name: data[name] for name in Line.model_fields if name in data})


def _path(job_dir: Path, number: int) -> Path:
    return attempt_dir(job_dir, number) / "events.jsonl"

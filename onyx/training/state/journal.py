"""The journal: every change of steering, and the place in the job from which it holds.

Its lines are events of an attempt: "memory", "config", and the message that a step is not compiled. Rank 0 writes a
line to the disk before it keeps or uses any number that depends on it. A later attempt that repeats a window, an
evaluation or a stretch of the reference applies the lines, so that it cuts as the first one did: same bits.
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
    """A place in the job, from which a change of steering holds."""

    window: int
    """The first window that it holds for."""

    evaluation: bool = False
    """Whether it also holds for the evaluation just before this window."""

    stretch: int | None = None
    """The first stretch of the reference that it holds for; None where it holds for none."""


class JournalLine(Place):
    """A change of steering."""

    budgets: tuple[int, ...] | None = None
    """For a line of memory: the budgets."""

    samples: int | None = None
    """For a change of config: samples of one update."""

    clipping: float | None = None
    """For a change of config: the clipping."""

    config: int = 0
    """The number of the change of config."""

    eager: bool = False
    """Whether the step is no longer compiled."""

    def applied(self, steering: Steering) -> Steering:
        """The steering after this line. Applying it twice is safe: budgets only fall, only a newer config counts."""
        if self.eager:
            steering = steering.model_copy(update={"eager": True})
        if self.budgets is not None:
            return steering.model_copy(update={"budgets": self.lowered(steering.budgets)})
        if self.samples is not None and self.config > steering.config:
            change = {"window": self.samples, "clipping": self.clipping, "config": self.config}
            return steering.model_copy(update=change)
        return steering

    def lowered(self, budgets: tuple[int, ...]) -> tuple[int, ...]:
        """The minimum of these budgets and the line's, rank by rank. A line of another number of ranks is ignored."""
        if self.budgets is None or len(self.budgets) != len(budgets):
            return budgets
        return tuple(min(pair) for pair in zip(self.budgets, budgets, strict=True))


class Journal:
    """The lines of former attempts, and those that this one adds."""

    def __init__(self, events: Events, lines: Sequence[JournalLine] = ()) -> None:
        self.events = events
        self.lines = list(lines)

    @property
    def config(self) -> int:
        """The number of the newest change of config in the journal, whether it is in effect yet or not."""
        return max((line.config for line in self.lines), default=0)

    def steering_for(self, steering: Steering, window: int, *, evaluation: bool = False) -> Steering:
        """The steering for this window, or for the evaluation just before it."""
        for line in self.lines:
            if line.window == window and (line.evaluation or not evaluation):
                steering = line.applied(steering)
        return steering

    def budgets_of_stretch(self, planned: tuple[int, ...], stretch: int) -> tuple[int, ...]:
        """The budgets for a stretch of the reference: a function of the plan and the journal alone.

        They are not those of the current window: a stretch that is computed again is cut as it was the first time.
        """
        for line in self.lines:
            if line.stretch is not None and line.stretch <= stretch:
                planned = line.lowered(planned)
        return planned

    def lower_budgets(
        self,
        place: Place,
        budgets: tuple[int, ...],
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        eager: bool = False,
    ) -> JournalLine:
        line = JournalLine(**place.model_dump(), budgets=budgets, eager=eager)
        return self._write(event_kinds.MEMORY, message, line, details or {})

    def stop_compiling(self, place: Place, message: str) -> JournalLine:
        return self._write(event_kinds.MESSAGE, message, JournalLine(**place.model_dump(), eager=True), {})

    def change_config(self, window: int, samples: int, clipping: float | None, number: int) -> JournalLine:
        limit = "no clipping" if clipping is None else f"clipping at {clipping:g}"
        line = JournalLine(window=window, samples=samples, clipping=clipping, config=number)
        message = f"from window {window} on: {samples} samples an update, {limit}"
        return self._write(event_kinds.CONFIG, message, line, {})

    def _write(self, kind: RankEventKind, message: str, line: JournalLine, details: Mapping[str, Any]) -> JournalLine:
        level: Level = "info" if kind == event_kinds.CONFIG else "warn"
        self.events.emit(kind, message, {**details, **_event_data(line)}, durable=True, level=level)
        self.lines.append(line)
        return line


def read_journal(job_dir: Path, before: int) -> list[JournalLine]:
    """The lines of all attempts before this one, in the order in which they were written."""
    paths = [_path(job_dir, number) for number in range(1, before)]
    events = [event for path in paths for event in read_events(path, *JOURNAL_KINDS)]
    return [_line(event.data) for event in events if "window" in event.data]


def dump_lines(lines: Sequence[JournalLine]) -> str:
    return json.dumps([line.model_dump() for line in lines])


def load_lines(text: str) -> list[JournalLine]:
    return [JournalLine.model_validate(line) for line in json.loads(text)]


def _event_data(line: JournalLine) -> dict[str, Any]:
    """The line's fields, without optional ones that have their default."""
    optional = ("evaluation", "stretch", "eager")
    unset = {name for name in optional if getattr(line, name) is JournalLine.model_fields[name].default}
    return line.model_dump(exclude=unset)


def _line(data: Mapping[str, Any]) -> JournalLine:
    """The journal's fields of an event's data."""
    return JournalLine.model_validate({name: data[name] for name in JournalLine.model_fields if name in data})


def _path(job_dir: Path, number: int) -> Path:
    return attempt_dir(job_dir, number) / "events.jsonl"

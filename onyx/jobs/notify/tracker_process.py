"""A process that tells Weights & Biases a job's numbers. It reads the attempts' events and is needed by nobody.

Its step is the update, so that an update which a resumed attempt does again is told once.
"""

import importlib
import time
from pathlib import Path
from typing import Any

from onyx.jobs.event_file import EVENTS, EventFileReader
from onyx.jobs.files import read_json, write_json
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Attempt, Event, attempt_dir
from onyx.training.contract.child_process import watch_inherited_lifeline
from onyx.training.contract.spec import Frozen, JobSpec

OVER = "over"
"""A file in the attempt's directory: its ranks have said all. A signal could come before anybody can hear it."""

TOLD = "tracked.json"
POLL_SECONDS = 0.5
_KINDS = (event_kinds.METRICS, event_kinds.EVALUATION)
_QUIET = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "host": "onyx",
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""A job's numbers are its owner's to show. The operator's host, its packages and its code are not."""


class TrackedUpdate(Frozen):
    """How far an attempt's tracker came."""

    update: int


class Tracker:
    """Hands on what is new, in the order of updates."""

    def __init__(self, attempt: Attempt, run: Any, first: int) -> None:
        """Tells updates from `first` on."""
        numbers = range(1, attempt.number + 1)
        self._tails = [EventFileReader(attempt_dir(attempt.job_dir, number) / EVENTS) for number in numbers]
        self._note = attempt.attempt_dir / TOLD
        self._run = run
        self._next = first

    def tell(self) -> None:
        """Everything since the last call."""
        before = self._next
        for event in (event for tail in self._tails for event in tail.read() if event.kind in _KINDS):
            update = int(event.data["update"])
            if update >= self._next:
                self._run.log(numbers_of(event), step=update)
                self._next = update
        if self._next > before:
            write_json(self._note, TrackedUpdate(update=self._next))


def main(attempt_path: str, mode: str) -> int:
    """Until the attempt is over and W&B has all of it."""
    attempt = Attempt.model_validate_json(Path(attempt_path).read_bytes())
    watch_inherited_lifeline(attempt.lease_seconds)
    run = open_run(attempt, mode)
    tracker = Tracker(attempt, run, run.step if mode == "online" else _after_former(attempt))
    over = False
    while not over:
        over = (attempt.attempt_dir / OVER).exists()  # looked for first: what was said before it is read now
        tracker.tell()
        time.sleep(0 if over else POLL_SECONDS)
    run.finish(exit_code=int((attempt.attempt_dir / "error.json").exists()))
    return 0


def open_run(attempt: Attempt, mode: str) -> Any:
    """The job's run in W&B: the one of former attempts, if there were any."""
    wandb = importlib.import_module("wandb")
    asked = attempt.spec.wandb
    assert asked is not None  # noqa: S101 - nobody else has a tracker
    return wandb.init(
        project=asked.project,
        entity=asked.entity,
        name=asked.name or attempt.job_id,
        tags=asked.tags,
        id=attempt.job_id,
        resume="allow",
        mode=mode,
        dir=str(attempt.job_dir),
        config=config_of(attempt.spec),
        settings=wandb.Settings(**_QUIET),
    )


def config_of(spec: JobSpec) -> dict[str, Any]:
    """What a run is compared by: how it was trained, and nothing of its data."""
    whole = spec.model_dump(mode="json", include={"model", "window", "accumulation_steps", "devices"})
    return whole | {"max_length": spec.data.max_length} | spec.training.model_dump(mode="json")


def numbers_of(event: Event) -> dict[str, float]:
    """Under the names that they have in the job's events."""
    return {name: value for name, value in event.data.items() if name != "update" and isinstance(value, int | float)}


def _after_former(attempt: Attempt) -> int:
    """The first update that no former attempt's tracker has told: offline nobody else can say."""
    notes = [attempt_dir(attempt.job_dir, number) / TOLD for number in range(1, attempt.number)]
    return max((told.update + 1 for note in notes if (told := read_json(note, TrackedUpdate))), default=0)

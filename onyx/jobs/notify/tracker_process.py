"""The process that sends a job's numbers to Weights & Biases. It reads the event files of the job's attempts.

W&B's step is the update, so that an update which a resumed attempt repeats is sent once.
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

ATTEMPT_OVER = "over"
"""A file that the runner makes in the attempt's directory when its ranks have ended. A signal could come too early."""

SENT = "tracked.json"
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
"""The job's owner may publish its numbers, but not the operator's host, packages and code."""


class TrackedUpdate(Frozen):
    """The last update that an attempt's tracker has sent."""

    update: int


class UpdateSender:
    """Sends new numbers to W&B, in the order of updates."""

    def __init__(self, attempt: Attempt, run: Any, first: int) -> None:
        """Sends updates from `first` on."""
        numbers = range(1, attempt.number + 1)
        self._readers = [EventFileReader(attempt_dir(attempt.job_dir, number) / EVENTS) for number in numbers]
        self._sent = attempt.attempt_dir / SENT
        self._run = run
        self._next = first

    def send(self) -> None:
        """Send everything since the last call."""
        before = self._next
        for event in (event for reader in self._readers for event in reader.read() if event.kind in _KINDS):
            update = int(event.data["update"])
            if update >= self._next:
                self._run.log(numbers_of(event), step=update)
                self._next = update
        if self._next > before:
            write_json(self._sent, TrackedUpdate(update=self._next))


def main(attempt_path: str, mode: str) -> int:
    """Run until the attempt is over and W&B has all of it."""
    attempt = Attempt.model_validate_json(Path(attempt_path).read_bytes())
    watch_inherited_lifeline(attempt.lease_seconds)
    run = open_run(attempt, mode)
    sender = UpdateSender(attempt, run, run.step if mode == "online" else _after_former(attempt))
    over = False
    while not over:
        over = (attempt.attempt_dir / ATTEMPT_OVER).exists()  # before reading: then the last events are read, too
        sender.send()
        time.sleep(0 if over else POLL_SECONDS)
    run.finish(exit_code=int((attempt.attempt_dir / "error.json").exists()))
    return 0


def open_run(attempt: Attempt, mode: str) -> Any:
    """The job's run in W&B: the one of former attempts, if there were any."""
    wandb = importlib.import_module("wandb")
    wanted = attempt.spec.wandb
    assert wanted is not None  # noqa: S101 - other jobs have no tracker
    return wandb.init(
        project=wanted.project,
        entity=wanted.entity,
        name=wanted.name or attempt.job_id,
        tags=wanted.tags,
        id=attempt.job_id,
        resume="allow",
        mode=mode,
        dir=str(attempt.job_dir),
        config=config_of(attempt.spec),
        settings=wandb.Settings(**_QUIET),
    )


def config_of(spec: JobSpec) -> dict[str, Any]:
    """What runs are compared by: how the job is trained, without its data."""
    whole = spec.model_dump(mode="json", include={"model", "window", "accumulation_steps", "devices"})
    return whole | {"max_length": spec.data.max_length} | spec.training.model_dump(mode="json")


def numbers_of(event: Event) -> dict[str, float]:
    """The event's numbers, under their names there."""
    return {name: value for name, value in event.data.items() if name != "update" and isinstance(value, int | float)}


def _after_former(attempt: Attempt) -> int:
    """The first update that no tracker of a former attempt has sent. Offline, W&B cannot say which."""
    paths = [attempt_dir(attempt.job_dir, number) / SENT for number in range(1, attempt.number)]
    return max((sent.update + 1 for path in paths if (sent := read_json(path, TrackedUpdate))), default=0)

"""What rank 0 writes about a run: events, metrics and checkpoints. On every other rank it writes nothing."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Attempt
from onyx.training.contract.errors import SupersededError
from onyx.training.contract.metrics_csv import Metrics, PreferenceRow, Row, TokenRow
from onyx.training.state import checkpoint
from onyx.training.state.events import Events
from onyx.training.state.progress import Progress


class Recorder:
    """Writes a run's events, metrics and checkpoints."""

    def __init__(self, attempt: Attempt, events: Events, progress: Progress, *, first: bool) -> None:
        self.first = first
        self.events = events
        self.schedule = checkpoint.CheckpointSchedule(attempt.spec.training.save_every_updates, progress.update)
        self._attempt = attempt
        kind = PreferenceRow if attempt.spec.training.objective == "dpo" else TokenRow
        self._metrics = Metrics(attempt.job_dir / "metrics.csv" if first else None, progress.update, kind)

    @property
    def checkpoints(self) -> Path:
        return self._attempt.job_dir / "checkpoints"

    def update(self, row: Row, details: Mapping[str, float], *, last: bool) -> None:
        """Record an update: the row goes to metrics.csv; the event has the details too."""
        self._metrics.add(row)
        self.events.metrics(f"update {row.update}: loss {row.loss:.4f}", {**asdict(row), **details}, last=last)

    def due(self, update: int) -> bool:
        """Whether it is time for a checkpoint and the disk has space for it. The last one of a run is always tried."""
        if not self.first or not self.schedule.due(update):
            return False
        free = shutil.disk_usage(self._attempt.job_dir).free
        if free >= self._attempt.free_disk_bytes + checkpoint.size(self.checkpoints):
            return True
        self.schedule.postpone(update)
        self.events.emit(
            event_kinds.MESSAGE,
            f"the disk of ONYX_HOME has {free} bytes left: no checkpoint at update {update}, the last one stays",
            {"update": update, "free_bytes": free},
            level="warn",
        )
        return False

    def save(self, progress: Progress, model: nn.Module, optimizer: Optimizer) -> None:
        """Write a checkpoint."""
        if not self.first:
            return
        self.refuse_if_superseded()
        started = time.monotonic()
        self._metrics.sync()
        path = checkpoint.save(self.checkpoints, progress, model, optimizer)
        seconds = time.monotonic() - started
        self.schedule.saved(progress.update, seconds)
        self.events.emit(
            event_kinds.CHECKPOINT,
            f"saved at update {progress.update}",
            {
                "update": progress.update,
                "samples": progress.samples,
                "path": str(path.relative_to(self._attempt.job_dir)),
                "seconds": seconds,
            },
        )

    def close(self) -> None:
        self.events.close()
        self._metrics.close()

    def refuse_if_superseded(self) -> None:
        """Raise SupersededError when there is a later attempt: only the latest may write to the job."""
        attempts = self._attempt.attempt_dir.parent
        latest = max((int(each.name) for each in attempts.iterdir() if each.name.isdecimal()), default=0)
        if latest > self._attempt.number:
            raise SupersededError(f"attempt {latest} holds this job, this is attempt {self._attempt.number}")

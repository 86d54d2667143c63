"""What rank 0 writes about a run: events, metrics and checkpoints. Every other rank has a silent one."""

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
    """Rank 0's pen."""

    def __init__(self, attempt: Attempt, events: Events, progress: Progress, *, first: bool) -> None:
        self.first = first
        self.events = events
        self.clock = checkpoint.CheckpointSchedule(attempt.spec.training.save_every_updates, progress.update)
        self._attempt = attempt
        kind = PreferenceRow if attempt.spec.training.objective == "dpo" else TokenRow
        self._metrics = Metrics(attempt.job_dir / "metrics.csv" if first else None, progress.update, kind)

    @property
    def checkpoints(self) -> Path:
        return self._attempt.job_dir / "checkpoints"

    def update(self, row: Row, details: Mapping[str, float], *, last: bool) -> None:
        """An update was made. Details are for whoever watches; metrics.csv has the row."""
        self._metrics.add(row)
        self.events.metrics(f"update {row.update}: loss {row.loss:.4f}", {**asdict(row), **details}, last=last)

    def due(self, update: int) -> bool:
        """Whether it is time for a checkpoint, and the disk has room for it. One that must be is tried in any case."""
        if not self.first or not self.clock.due(update):
            return False
        free = shutil.disk_usage(self._attempt.job_dir).free
        if free >= self._attempt.free_disk_bytes + checkpoint.size(self.checkpoints):
            return True
        self.clock.put_off(update)
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
        self._metrics.keep()
        path = checkpoint.save(self.checkpoints, progress, model, optimizer)
        seconds = time.monotonic() - started
        self.clock.saved(progress.update, seconds)
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
        """What an attempt leaves behind belongs to the job, so only the latest may leave anything."""
        attempts = self._attempt.attempt_dir.parent
        latest = max((int(each.name) for each in attempts.iterdir() if each.name.isdecimal()), default=0)
        if latest > self._attempt.number:
            raise SupersededError(f"attempt {latest} holds this job, this is attempt {self._attempt.number}")

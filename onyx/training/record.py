"""What rank 0 writes about a run: events, metrics and checkpoints. Every other rank has a silent one."""

import time
from dataclasses import asdict
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from onyx.training import checkpoint
from onyx.training.attempt import Attempt
from onyx.training.events import Events
from onyx.training.failure import SupersededError
from onyx.training.metrics import Metrics, PreferenceRow, Row
from onyx.training.progress import Progress


class Record:
    """Rank 0's pen."""

    def __init__(self, attempt: Attempt, events: Events, progress: Progress, *, first: bool) -> None:
        self.first = first
        self.events = events
        self.clock = checkpoint.Clock(attempt.spec.training.save_every_updates, progress.update)
        self._attempt = attempt
        kind = PreferenceRow if attempt.spec.training.objective == "dpo" else Row
        self._metrics = Metrics(attempt.job_dir / "metrics.csv" if first else None, progress.update, kind)

    @property
    def checkpoints(self) -> Path:
        return self._attempt.job_dir / "checkpoints"

    def update(self, row: Row, *, micro_batches: int, last: bool) -> None:
        """An update was made."""
        self._metrics.add(row)
        self.events.metrics(
            f"update {row.update}: loss {row.loss:.4f}",
            asdict(row) | {"micro_batches": micro_batches},
            last=last,
        )

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
        self.events.say(
            "checkpoint",
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

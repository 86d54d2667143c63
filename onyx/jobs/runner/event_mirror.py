"""Mirrors the events of an attempt from its event file into the store. While the store is unavailable they wait."""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from onyx.jobs.errors import LostAttempt, StoreUnavailableError
from onyx.jobs.event_file import EVENTS, EventFileReader
from onyx.jobs.models import ClaimedJob, JobProgress
from onyx.jobs.retry import retry_until_available
from onyx.jobs.runner.lease_keeper import LeaseKeeper
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Event, attempt_dir
from onyx.training.contract.prepared import PreparedJob

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Between two writes to a store that is unavailable."""


class EventMirror:
    """Writes one attempt's events, progress and checkpoints to the store, each once."""

    def __init__(self, claimed: ClaimedJob, context: RunnerContext, keeper: LeaseKeeper) -> None:
        self._lease = claimed.lease
        self._store = context.store
        self._keeper = keeper
        self._tally = context.tally
        self._tokens = claimed.job.progress.trained_tokens if claimed.job.progress else 0
        folder = attempt_dir(context.settings.job_dir(claimed.job.id), claimed.lease.attempt)
        self._reader = EventFileReader(folder / EVENTS)
        self._waiting: list[Event] = []
        """Events that are not in the store yet."""
        self._metrics: list[Event] = []
        """Events that are in the store but not yet counted in the job's progress there."""
        self._saved: int | None = None
        """The newest checkpoint, until the store knows it."""
        self._total = total_samples(claimed)
        self._planned = planned_bytes(claimed)
        self._last = claimed.job.progress or JobProgress(update=0)
        self._retry_at = 0.0
        self._began = time.monotonic()
        self._first_samples: int | None = None
        self.last_event_at = self._began
        """When the attempt last wrote an event, by `time.monotonic`."""

    async def mirror(self) -> None:
        """Write what is new, if the store is available. A lost attempt is reported to the lease keeper."""
        new = self._reader.read()
        if new:
            self.last_event_at = time.monotonic()
            self._waiting += new
        if not self._pending or self._keeper.lost or time.monotonic() < self._retry_at:
            return
        try:
            await self._write_events()
            await self._write_progress()
        except StoreUnavailableError:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            logger.warning("the store is unavailable: %d events wait", len(self._waiting), extra=vars(self._lease))
        except LostAttempt:
            self._keeper.lose()

    @property
    def _pending(self) -> bool:
        return bool(self._waiting or self._metrics or self._saved is not None)

    async def mirror_rest(self) -> None:
        """Write everything, however long the store is unavailable."""
        await self.mirror()
        while self._pending and not self._keeper.lost:
            await asyncio.sleep(0.5)
            await self.mirror()

    async def _write_events(self) -> None:
        """They are counted once they are in the store, and not again when the writes that follow are retried."""
        events = self._waiting
        if not events:
            return
        await self._store.events.mirror(self._lease, events)
        self._waiting = []
        self._tokens = self._tally.add(events, self._tokens)
        self._metrics += [event for event in events if event.kind == event_kinds.METRICS]
        saved = [event.data["update"] for event in events if event.kind == event_kinds.CHECKPOINT]
        self._saved = max(saved, default=self._saved)

    async def _write_progress(self) -> None:
        """How far the job is, and the checkpoint from which it could resume."""
        if self._metrics:
            progress = self._progress(self._metrics)
            await self._store.attempts.report_progress(self._lease, progress)
            self._last, self._metrics = progress, []
        if self._saved is not None:
            await self._store.attempts.report_checkpoint(self._lease, self._saved)
            self._saved = None

    def _progress(self, metrics: Sequence[Event]) -> JobProgress:
        data = metrics[-1].data
        samples = int(data["samples"])
        if self._first_samples is None:
            self._first_samples, self._began = samples, time.monotonic()
        done, elapsed = samples - self._first_samples, time.monotonic() - self._began
        left = elapsed / done * (self._total - samples) if done > 0 else None
        per_update = samples / data["update"]
        return JobProgress(
            update=data["update"],
            total_updates=math.ceil(self._total / per_update),
            epoch=data["epoch"],
            samples=samples,
            trained_tokens=data["trained_tokens"],
            loss=data["loss"],
            learning_rate=data["learning_rate"],
            seconds_left=left,
            percent=round(100 * samples / self._total, 2),
            tokens_per_second=data["tokens_per_second"],
            micro_batch=data["micro_batch"],
            memory_bytes=data["peak_bytes"],
            planned_bytes=self._planned,
            **self._norms(metrics),
        )

    def _norms(self, metrics: Sequence[Event]) -> dict[str, Any]:
        """The running mean of the gradient norms: listing jobs must not read every update of each."""
        last = self._last
        count = last.norms + len(metrics)
        total = (last.mean_gradient_norm or 0.0) * last.norms + sum(each.data["gradient_norm"] for each in metrics)
        return {"mean_gradient_norm": total / count, "norms": count}


def total_samples(claimed: ClaimedJob) -> int:
    """Samples of the whole job, over all epochs."""
    return PreparedJob.model_validate(claimed.job.prepared).samples * claimed.spec.training.epochs


def planned_bytes(claimed: ClaimedJob) -> int | None:
    """The most memory that the plan allows a rank. A roomy heap keeps freed memory: that is more than live tensors."""
    planned = PreparedJob.model_validate(claimed.job.prepared).planned
    devices = planned.plan["devices"] if planned else []
    return max((each["high" if each.get("heap") == "roomy" else "expected_peak"] for each in devices), default=None)


async def mirror_former_attempts(claimed: ClaimedJob, context: RunnerContext) -> None:
    """Mirror the event files of attempts before this one: their runner may have died before it did."""
    job_dir = context.settings.job_dir(claimed.job.id)
    for number in range(1, claimed.lease.attempt):
        lines = EventFileReader(attempt_dir(job_dir, number) / EVENTS).read()
        if not lines:
            continue
        last_line = partial(context.store.events.last_line, claimed.job.id, number)
        if lines[-1].line > await retry_until_available(last_line):
            mirror = partial(context.store.events.mirror_ended, context.runner_id, claimed.job.id, number, lines)
            await retry_until_available(mirror)

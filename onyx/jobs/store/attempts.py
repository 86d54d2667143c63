"""What a runner writes about an attempt that it holds. Every write checks the lease in its own transaction."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from onyx.jobs.errors import BadValueError, NotAllowedError
from onyx.jobs.models import DeviceNeed, Heartbeat, Job, JobProgress, Lease
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.lifecycle import (
    add_event,
    change_status,
    end_attempt,
    fail,
    lock_ended_or_held,
    lock_held,
    stop_attempt,
)
from onyx.jobs.store.rows import to_config_request, to_job
from onyx.jobs.store.tables import AttemptRow, JobRow
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Failure, Result
from onyx.training.contract.spec import JobSpec

RELEASES = (Outcome.LOST, Outcome.MEMORY, Outcome.SAVED)
"""How an attempt can end while its job goes on."""

_Change = Callable[[Transaction, JobRow, AttemptRow], Awaitable[None]]


class Attempts(Concern):
    """From a claim to the attempt's end. Every method raises LostAttempt when the lease is no longer valid.

    A write that ends an attempt may be repeated, for example when the connection broke before its answer arrived. The
    second write changes nothing.
    """

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        """Renew the lease, also a lapsed one that no other runner has taken, and return what the owner wants."""
        async with self._database.writing() as tx:
            job, attempt = await lock_held(tx, lease)
            attempt.lease_until = tx.now + self._database.lease_seconds
            return Heartbeat(
                lease_until=attempt.lease_until,
                request=StopRequest(job.request) if job.request else None,
                config=to_config_request(job),
            )

    async def report_progress(self, lease: Lease, progress: JobProgress) -> None:
        """Store how far the job is."""
        async with self._database.writing() as tx:
            job, _ = await lock_held(tx, lease)
            job.progress = json_text.dump(progress)
            job.progress_at = tx.now

    async def report_checkpoint(self, lease: Lease, update: int) -> None:
        """Note a complete checkpoint. One beyond all earlier ones is progress: the count of lost attempts restarts."""
        if update < 0:
            raise BadValueError(f"a checkpoint's update must be 0 or more, not {update}")
        async with self._database.writing() as tx:
            job, _ = await lock_held(tx, lease)
            if update > (-1 if job.checkpoint_update is None else job.checkpoint_update):
                job.checkpoint_update = update
                job.lost_attempts = 0

    async def warn(self, lease: Lease, message: str, **data: Any) -> None:
        """Tell the owner something that the ranks cannot see, as an event of level warn."""
        await self.add_event(lease, message, level="warn", **data)

    async def add_event(
        self, lease: Lease, message: str, *, level: Literal["info", "warn"] = "info", **data: Any
    ) -> None:
        """Tell the owner something, as an event."""
        async with self._database.writing() as tx:
            job, _ = await lock_held(tx, lease)
            add_event(tx, job, message, kind=event_kinds.MESSAGE, level=level, **data)

    async def report_prepared(
        self, lease: Lease, needs: Sequence[DeviceNeed], document: dict[str, Any], *, warnings: Sequence[str] = ()
    ) -> Job:
        """Model, data and plan are ready: the job now waits for the devices that the plan names.

        Each of `warnings` becomes an event.
        """
        if not needs:
            raise BadValueError("a plan needs at least one device: give `needs`")

        async def change(tx: Transaction, job: JobRow, attempt: AttemptRow) -> None:
            if attempt.phase != JobStatus.VALIDATING:
                raise NotAllowedError(f"{job.id} is {job.status}: it was prepared before, claim it to train it")
            await end_attempt(tx, job, attempt, Outcome.PREPARED, attempt.runner_id)
            job.needs = json_text.dump([need.model_dump() for need in needs])
            job.prepared = json_text.dump(document)
            job.queued_at = tx.now
            job.lost_attempts = 0
            for warning in warnings:
                add_event(tx, job, warning, level="warn")
            spec = JobSpec.model_validate_json(job.spec)
            _warn_of_losses(tx, job, document)
            if spec.auto_start:
                change_status(tx, job, JobStatus.QUEUED, "The job is prepared and waits for devices")
            else:
                change_status(tx, job, JobStatus.PAUSED, "The job is prepared; it starts when it is resumed")

        return await self._end(lease, Outcome.PREPARED, change)

    async def report_succeeded(self, lease: Lease, result: Result) -> Job:
        """The model is published: the job has succeeded."""

        async def change(tx: Transaction, job: JobRow, attempt: AttemptRow) -> None:
            await end_attempt(tx, job, attempt, Outcome.SUCCEEDED, attempt.runner_id)
            job.result = json_text.dump(result)
            change_status(tx, job, JobStatus.SUCCEEDED, "The job succeeded")

        return await self._end(lease, Outcome.SUCCEEDED, change)

    async def report_failed(self, lease: Lease, error: Failure) -> Job:
        """The job cannot work as requested: it fails and is not tried again."""

        async def change(tx: Transaction, job: JobRow, attempt: AttemptRow) -> None:
            await end_attempt(tx, job, attempt, Outcome.FAILED, attempt.runner_id)
            fail(tx, job, error)

        return await self._end(lease, Outcome.FAILED, change)

    async def release(self, lease: Lease, outcome: Outcome) -> Job:
        """Give the job back. It is queued again, unless its owner paused or cancelled it or it was lost too often."""
        if outcome not in RELEASES:
            raise BadValueError(f"release a job as {', '.join(RELEASES)}, not as {outcome}")
        return await self._stop(lease, outcome)

    async def report_paused(self, lease: Lease) -> Job:
        """The ranks have saved and stopped for a pause. If the owner has resumed the job meanwhile, it is queued."""
        return await self._stop(lease, Outcome.PAUSED)

    async def report_cancelled(self, lease: Lease) -> Job:
        """The ranks have stopped for good."""
        return await self._stop(lease, Outcome.CANCELLED)

    async def _stop(self, lease: Lease, outcome: Outcome) -> Job:
        async def change(tx: Transaction, job: JobRow, attempt: AttemptRow) -> None:
            await stop_attempt(tx, job, attempt, outcome, attempt.runner_id)

        return await self._end(lease, outcome, change)

    async def _end(self, lease: Lease, outcome: Outcome, change: _Change) -> Job:
        async with self._database.writing() as tx:
            job, attempt = await lock_ended_or_held(tx, lease, outcome)
            if attempt.ended_at is None:
                await change(tx, job, attempt)
                await tx.session.flush()
            return to_job(job)


def _warn_of_losses(tx: Transaction, job: JobRow, document: dict[str, Any]) -> None:
    """Tell the owner what part of the data will not be trained on."""
    if cut := document.get("truncated"):
        add_event(tx, job, f"{cut} samples are longer than max_length and were cut there", level="warn", truncated=cut)
    if bad := document.get("bad_lines"):
        add_event(tx, job, f"{bad} lines of the data cannot be used and were left out", level="warn", bad_lines=bad)

"""What the holder of an attempt may write. Each write is lost, loudly, on whoever holds it no longer."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from onyx.jobs.errors import BadValueError, NotAllowedError
from onyx.jobs.models import DeviceNeed, Heartbeat, Job, JobProgress, Lease
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.lifecycle import end_attempt, fail, lock_ended_or_held, lock_held, move, say, stop_attempt
from onyx.jobs.store.rows import to_config_request, to_job
from onyx.jobs.store.tables import AttemptRow, JobRow
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Failure, Result
from onyx.training.contract.spec import JobSpec

RELEASES = (Outcome.LOST, Outcome.MEMORY, Outcome.SAVED)
"""How an attempt can end without its job being done, failed or stopped by its owner."""

_Change = Callable[[Transaction, JobRow, AttemptRow], Awaitable[None]]


class Attempts(Concern):
    """From a claim to the attempt's end. Every method raises LostAttempt when the lease is no longer valid.

    A write that ends an attempt may be repeated, as after an answer that was lost with the connection: the second
    time it changes nothing.
    """

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        """Renew the lease (also one that has lapsed, if nobody took it) and hear what the owner wants."""
        async with self._database.writing() as tx:
            job, attempt = await lock_held(tx, lease)
            attempt.lease_until = tx.now + self._database.lease_seconds
            return Heartbeat(
                lease_until=attempt.lease_until,
                request=StopRequest(job.request) if job.request else None,
                config=to_config_request(job),
            )

    async def report_progress(self, lease: Lease, progress: JobProgress) -> None:
        """How far the job is."""
        async with self._database.writing() as tx:
            job, _ = await lock_held(tx, lease)
            job.progress = json_text.dump(progress)
            job.progress_at = tx.now

    async def report_checkpoint(self, lease: Lease, update: int) -> None:
        """Note a complete checkpoint. One further than all before shows progress: retries are counted anew."""
        if update < 0:
            raise BadValueError(f"a checkpoint's update cannot be {update}")
        async with self._database.writing() as tx:
            job, _ = await lock_held(tx, lease)
            if update > (-1 if job.checkpoint_update is None else job.checkpoint_update):
                job.checkpoint_update = update
                job.lost_attempts = 0

    async def warn(self, lease: Lease, message: str, **data: Any) -> None:
        """Something that the job's owner should know, and that its ranks cannot see."""
        await self.add_event(lease, message, level="warn", **data)

    async def add_event(
        self, lease: Lease, message: str, *, level: Literal["info", "warn"] = "info", **data: Any
    ) -> None:
        """The same, for what need not worry anybody."""
        async with self._database.writing() as tx:
            job, _ = await lock_held(tx, lease)
            say(tx, job, message, kind=event_kinds.MESSAGE, level=level, **data)

    async def report_prepared(
        self, lease: Lease, needs: Sequence[DeviceNeed], document: dict[str, Any], *, warnings: Sequence[str] = ()
    ) -> Job:
        """Model and data are ready and there is a plan: the job may wait for the devices that the plan names.

        Each of `warnings` becomes an event.
        """
        if not needs:
            raise BadValueError("a plan needs at least one device")

        async def change(tx: Transaction, job: JobRow, attempt: AttemptRow) -> None:
            if attempt.phase != JobStatus.VALIDATING:
                raise NotAllowedError(f"{job.id} is {job.status}: it was prepared before")
            await end_attempt(tx, job, attempt, Outcome.PREPARED, attempt.runner_id)
            job.needs = json_text.dump([need.model_dump() for need in needs])
            job.prepared = json_text.dump(document)
            job.queued_at = tx.now
            job.lost_attempts = 0
            for warning in warnings:
                say(tx, job, warning, level="warn")
            spec = JobSpec.model_validate_json(job.spec)
            _tell_losses(tx, job, document)
            if spec.auto_start:
                move(tx, job, JobStatus.QUEUED, "The job is prepared and waits for devices")
            else:
                move(tx, job, JobStatus.PAUSED, "The job is prepared and planned; it starts when it is resumed")

        return await self._end(lease, Outcome.PREPARED, change)

    async def report_succeeded(self, lease: Lease, result: Result) -> Job:
        """The model is published."""

        async def change(tx: Transaction, job: JobRow, attempt: AttemptRow) -> None:
            await end_attempt(tx, job, attempt, Outcome.SUCCEEDED, attempt.runner_id)
            job.result = json_text.dump(result)
            move(tx, job, JobStatus.SUCCEEDED, "The job succeeded")

        return await self._end(lease, Outcome.SUCCEEDED, change)

    async def report_failed(self, lease: Lease, error: Failure) -> Job:
        """The job cannot work as it was asked for; it is not tried again."""

        async def change(tx: Transaction, job: JobRow, attempt: AttemptRow) -> None:
            await end_attempt(tx, job, attempt, Outcome.FAILED, attempt.runner_id)
            fail(tx, job, error)

        return await self._end(lease, Outcome.FAILED, change)

    async def release(self, lease: Lease, outcome: Outcome) -> Job:
        """Give the job back: it is queued again, unless its owner wants otherwise or it was lost too often."""
        if outcome not in RELEASES:
            raise BadValueError(f"a job is released as {', '.join(RELEASES)}, not as {outcome}")
        return await self._stop(lease, outcome)

    async def report_paused(self, lease: Lease) -> Job:
        """The ranks have saved and stopped for a pause. If the owner has resumed meanwhile, the job is queued."""
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


def _tell_losses(tx: Transaction, job: JobRow, document: dict[str, Any]) -> None:
    """What was asked for and will not happen: an owner should not have to look for it."""
    if cut := document.get("truncated"):
        say(tx, job, f"{cut} samples are longer than max_length and were cut there", level="warn", truncated=cut)
    if bad := document.get("bad_lines"):
        say(tx, job, f"{bad} lines of the data cannot be used and were left out", level="warn", bad_lines=bad)

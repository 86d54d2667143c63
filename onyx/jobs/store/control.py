"""What an owner asks of a job after its creation: cancel, pause, resume, change the config."""

from onyx.jobs.errors import NotAllowedError
from onyx.jobs.models import ConfigChange, Job
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.lifecycle import BY_OWNER, add_event, change_status, end_attempt, live_attempt, lock_job
from onyx.jobs.store.rows import to_config_request, to_job
from onyx.jobs.store.tables import JobRow


class JobControl(Concern):
    """Repeating a request changes nothing. `owner` None is the operator."""

    async def cancel(self, job_id: str, owner: str | None = None) -> Job:
        """Cancel the job: at once, or as soon as its ranks have stopped."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            if job.status == JobStatus.RUNNING:
                _request_stop(tx, job, StopRequest.CANCEL)
            elif job.status != JobStatus.CANCELLED:
                await _stop_now(tx, job, JobStatus.CANCELLED, Outcome.CANCELLED, "The job was cancelled")
            return await _flushed(tx, job)

    async def pause(self, job_id: str, owner: str | None = None) -> Job:
        """Pause the job: at once, or as soon as its ranks have saved."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            if job.status == JobStatus.RUNNING:
                if job.request == StopRequest.CANCEL:
                    raise NotAllowedError(f"{job_id} is being cancelled and cannot be paused")
                _request_stop(tx, job, StopRequest.PAUSE)
            elif job.status != JobStatus.PAUSED:
                await _stop_now(tx, job, JobStatus.PAUSED, Outcome.PAUSED, "The job is paused")
            return await _flushed(tx, job)

    async def resume(self, job_id: str, owner: str | None = None) -> Job:
        """Let a paused job go on, or take back a pause that its ranks have not carried out yet."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            status = JobStatus(job.status)
            if status is JobStatus.PAUSED:
                to = JobStatus.QUEUED if job.prepared is not None else JobStatus.VALIDATING
                change_status(tx, job, to, "The job was resumed")
            elif job.request == StopRequest.PAUSE:
                job.request = None
                add_event(tx, job, "The pause was taken back")
            elif status.terminal or job.request == StopRequest.CANCEL:
                what = f"is {status}" if status.terminal else "is being cancelled"
                raise NotAllowedError(f"{job_id} {what} and cannot be resumed")
            return await _flushed(tx, job)

    async def change_config(self, job_id: str, change: ConfigChange, owner: str | None = None) -> Job:
        """Change accumulation steps or clipping of an unfinished job, on top of earlier changes."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            if JobStatus(job.status).terminal:
                raise NotAllowedError(f"{job_id} is {job.status}: its config can no longer change")
            earlier = to_config_request(job)
            job.config = json_text.dump(change.over(earlier.change if earlier else None).given())
            job.config_seq += 1
            add_event(tx, job, "The owner changed the config", change=change.given())
            return await _flushed(tx, job)


def _request_stop(tx: Transaction, job: JobRow, request: StopRequest) -> None:
    if job.request != request:
        job.request = request
        add_event(tx, job, f"The owner asked to {request} the job", request=request)


async def _stop_now(tx: Transaction, job: JobRow, to: JobStatus, outcome: Outcome, why: str) -> None:
    """Change the status at once: no rank has to save. A helper that prepares the job loses its attempt."""
    attempt = await live_attempt(tx, job)
    change_status(tx, job, to, why)
    if attempt is not None:
        await end_attempt(tx, job, attempt, outcome, BY_OWNER)


async def _flushed(tx: Transaction, job: JobRow) -> Job:
    await tx.session.flush()
    return to_job(job)

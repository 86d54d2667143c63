"""What an owner asks of a job after its creation: cancel, pause, resume, change the config."""

from onyx.jobs.errors import NotAllowedError
from onyx.jobs.models import ConfigChange, Job
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.lifecycle import BY_OWNER, end_attempt, live_attempt, lock_job, move, say
from onyx.jobs.store.rows import to_config_request, to_job
from onyx.jobs.store.tables import JobRow


class JobControl(Concern):
    """Asking twice is asking once. `owner` None is the operator."""

    async def cancel(self, job_id: str, owner: str | None = None) -> Job:
        """End the job: at once, or as soon as its ranks have stopped."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            if job.status == JobStatus.RUNNING:
                _ask(tx, job, StopRequest.CANCEL)
            elif job.status != JobStatus.CANCELLED:
                await _change_now(tx, job, JobStatus.CANCELLED, Outcome.CANCELLED, "The job was cancelled")
            return await _answer(tx, job)

    async def pause(self, job_id: str, owner: str | None = None) -> Job:
        """Keep the job from running: at once, or as soon as its ranks have saved."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            if job.status == JobStatus.RUNNING:
                if job.request == StopRequest.CANCEL:
                    raise NotAllowedError(f"{job_id} is being cancelled and cannot be paused")
                _ask(tx, job, StopRequest.PAUSE)
            elif job.status != JobStatus.PAUSED:
                await _change_now(tx, job, JobStatus.PAUSED, Outcome.PAUSED, "The job is paused")
            return await _answer(tx, job)

    async def resume(self, job_id: str, owner: str | None = None) -> Job:
        """Let a paused job go on, or take back a pause that has not happened yet."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            status = JobStatus(job.status)
            if status is JobStatus.PAUSED:
                to = JobStatus.QUEUED if job.prepared is not None else JobStatus.VALIDATING
                move(tx, job, to, "The job was resumed")
            elif job.request == StopRequest.PAUSE:
                job.request = None
                say(tx, job, "The pause was taken back")
            elif status.terminal or job.request == StopRequest.CANCEL:
                what = f"is {status}" if status.terminal else "is being cancelled"
                raise NotAllowedError(f"{job_id} {what} and cannot be resumed")
            return await _answer(tx, job)

    async def change_config(self, job_id: str, change: ConfigChange, owner: str | None = None) -> Job:
        """Change what may change while a job runs, on top of former changes; also for its later attempts."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            if JobStatus(job.status).terminal:
                raise NotAllowedError(f"{job_id} is {job.status}: its config can no longer change")
            former = to_config_request(job)
            job.config = json_text.dump(change.over(former.change if former else None).given())
            job.config_seq += 1
            say(tx, job, "A change of the config was asked for", change=change.given())
            return await _answer(tx, job)


def _ask(tx: Transaction, job: JobRow, request: StopRequest) -> None:
    if job.request != request:
        job.request = request
        say(tx, job, f"The owner asked to {request} the job", request=request)


async def _change_now(tx: Transaction, job: JobRow, to: JobStatus, outcome: Outcome, why: str) -> None:
    """Nothing runs that would have to save: a helper that prepares the job finds its attempt lost, and stops."""
    attempt = await live_attempt(tx, job)
    move(tx, job, to, why)
    if attempt is not None:
        await end_attempt(tx, job, attempt, outcome, BY_OWNER)


async def _answer(tx: Transaction, job: JobRow) -> Job:
    await tx.session.flush()
    return to_job(job)

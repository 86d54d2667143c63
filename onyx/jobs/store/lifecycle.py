"""How a job changes. Each change of status goes through `change_status`, which also adds an event."""

from typing import Any, Literal

from sqlalchemy import delete, select

from onyx.jobs.errors import JobNotFoundError, LostAttempt
from onyx.jobs.ids import is_id
from onyx.jobs.models import Lease
from onyx.jobs.status import JobStatus, Outcome, StopRequest, check_change
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Transaction
from onyx.jobs.store.tables import AttemptRow, DeviceRow, EventRow, JobRow
from onyx.jobs.store.webhooks import add_webhooks
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Failure
from onyx.training.contract.event_kinds import EventKind

MAX_RETRIES = 5
"""How many lost attempts in a row, without a new checkpoint, a job survives."""

BY_OWNER = ""
"""`ended_by` of an attempt that the owner ended, not a runner."""

_COUNTED = (Outcome.LOST, Outcome.MEMORY)


async def find_job(tx: Transaction, job_id: str) -> JobRow | None:
    """The job's row, locked until this transaction ends; None if there is none."""
    if not is_id(job_id):
        return None
    query = select(JobRow).where(JobRow.id == job_id).with_for_update()
    return (await tx.session.scalars(query.execution_options(populate_existing=True))).one_or_none()


async def lock_job(tx: Transaction, job_id: str, owner: str | None = None) -> JobRow:
    """The same for an owner. Another owner's job raises JobNotFoundError: its existence is not revealed."""
    job = await find_job(tx, job_id)
    if job is None or owner not in (None, job.owner):
        raise JobNotFoundError(job_id)
    return job


async def lock_held(tx: Transaction, lease: Lease) -> tuple[JobRow, AttemptRow]:
    """The job and its live attempt, if the lease is valid. Every write after a claim passes this check."""
    return await lock_ended_or_held(tx, lease, None)


async def lock_ended_or_held(tx: Transaction, lease: Lease, outcome: Outcome | None) -> tuple[JobRow, AttemptRow]:
    """The same; or the last attempt, if its own runner has already ended it with this outcome and repeats the call."""
    job = await find_job(tx, lease.job_id)
    attempt = await find_attempt(tx, lease.job_id, lease.attempt)
    if job is None or attempt is None or job.attempt != lease.attempt:
        raise LostAttempt(lease.job_id, lease.attempt)
    if attempt.ended_at is not None and (attempt.outcome != outcome or attempt.ended_by != attempt.runner_id):
        raise LostAttempt(lease.job_id, lease.attempt)
    return job, attempt


async def find_attempt(tx: Transaction, job_id: str, number: int) -> AttemptRow | None:
    """One attempt of a job."""
    return await tx.session.get(AttemptRow, (job_id, number))


async def live_attempt(tx: Transaction, job: JobRow) -> AttemptRow | None:
    """The attempt that holds the job, if any."""
    attempt = await find_attempt(tx, job.id, job.attempt)
    return attempt if attempt is not None and attempt.ended_at is None else None


def change_status(tx: Transaction, job: JobRow, to: JobStatus, why: str, **data: Any) -> None:
    """Change the status, if `status.ALLOWED` has the change, and add an event."""
    check_change(job.id, JobStatus(job.status), to)
    job.status = to
    if to.terminal:
        job.finished_at = tx.now
        add_webhooks(tx, job, to)
    if to is not JobStatus.RUNNING:
        job.request = None  # carried out, or no longer needed
    add_event(tx, job, why, level="error" if to is JobStatus.FAILED else "info", status=to, **data)


def add_event(
    tx: Transaction,
    job: JobRow,
    message: str,
    *,
    kind: EventKind = event_kinds.STATUS,
    level: Literal["info", "warn", "error"] = "info",
    **data: Any,
) -> None:
    """Add an event of the store itself. The job's lock makes the numbers consecutive."""
    job.last_event += 1
    tx.session.add(
        EventRow(
            job_id=job.id,
            seq=job.last_event,
            attempt=job.attempt or None,
            time=tx.now,
            kind=kind,
            level=level,
            message=json_text.clean(message),
            data=json_text.dump(data),
        )
    )


async def end_attempt(tx: Transaction, job: JobRow, attempt: AttemptRow, outcome: Outcome, ended_by: str) -> None:
    """Close the attempt and free its devices."""
    attempt.ended_at = tx.now
    attempt.outcome = outcome
    attempt.ended_by = ended_by
    if attempt.phase == JobStatus.RUNNING:
        job.running_seconds += max(0.0, tx.now - attempt.claimed_at)
    held = (DeviceRow.job_id == job.id, DeviceRow.attempt == attempt.number)
    await tx.session.execute(delete(DeviceRow).where(*held))


async def stop_attempt(tx: Transaction, job: JobRow, attempt: AttemptRow, outcome: Outcome, ended_by: str) -> None:
    """Close an attempt that did not finish its job, and decide the job's next status."""
    await end_attempt(tx, job, attempt, outcome, ended_by)
    if outcome in _COUNTED:
        job.lost_attempts += 1
    if outcome is Outcome.MEMORY:
        job.memory_losses += 1
    phase = JobStatus(attempt.phase)
    why = _WHY[outcome]
    if outcome is Outcome.CANCELLED or job.request == StopRequest.CANCEL:
        change_status(tx, job, JobStatus.CANCELLED, "The job was cancelled", outcome=outcome)
    elif job.lost_attempts > MAX_RETRIES:
        _give_up(tx, job, outcome)
    elif job.request == StopRequest.PAUSE:
        change_status(tx, job, JobStatus.PAUSED, "The job is paused", outcome=outcome)
    elif phase is JobStatus.VALIDATING:
        add_event(tx, job, f"{why}: preparing starts again", level="warn", outcome=outcome)
    else:
        start = f"from update {job.checkpoint_update}" if job.checkpoint_update is not None else "from the start"
        change_status(tx, job, JobStatus.QUEUED, f"{why}: queued to go on {start}", outcome=outcome)


_WHY = {
    Outcome.LOST: "The attempt was lost",
    Outcome.MEMORY: "The attempt ran out of memory",
    Outcome.SAVED: "The attempt stopped after saving",
    Outcome.PAUSED: "The attempt stopped after saving",  # the owner resumed it meanwhile
    Outcome.CANCELLED: "The attempt was cancelled",
}


def _give_up(tx: Transaction, job: JobRow, outcome: Outcome) -> None:
    memory = outcome is Outcome.MEMORY
    failure = Failure(
        code="out_of_memory" if memory else "lost_attempts",
        message=f"{job.lost_attempts} attempts in a row ended without a new checkpoint, the last one "
        + ("out of memory: use fewer tokens per sample, LoRA or a larger device" if memory else "lost: see the logs"),
    )
    fail(tx, job, failure)


def fail(tx: Transaction, job: JobRow, failure: Failure) -> None:
    """Let the job fail, with one event for each finding about its data."""
    job.error = json_text.dump(failure)
    for finding in failure.findings:
        where = f"line {finding.get('line')} of the {finding.get('part', 'training')} data"
        line, part, code = (finding.get(name) for name in ("line", "part", "code"))
        add_event(tx, job, f"{where}: {finding.get('message')}", level="error", line=line, part=part, code=code)
    change_status(tx, job, JobStatus.FAILED, failure.message, code=failure.code)

"""Queued jobs whose devices are gone: planned anew for the devices that there are."""

from collections.abc import Sequence

from sqlalchemy import Select, select

from onyx.jobs.models import DeviceNeed, Job, RunnerDevice
from onyx.jobs.status import JobStatus
from onyx.jobs.store.claims import assign_devices
from onyx.jobs.store.database import CLAIM_LOCK, Concern, Transaction
from onyx.jobs.store.lifecycle import add_event, change_status, find_job
from onyx.jobs.store.rows import load_needs, to_job
from onyx.jobs.store.runners import touch
from onyx.jobs.store.tables import EventRow, JobRow, RunnerRow

STRANDED = "stranded"
"""The code of the event that reports a stranded job."""


class StrandedJobs(Concern):
    """Jobs that no device of the running runners fits."""

    async def replan(self, runner_id: str, devices: Sequence[RunnerDevice], *, after: float) -> tuple[Job, ...]:
        """Send queued jobs that `devices`, all devices of this runner, could never run back to be planned anew.

        A job qualifies when nothing has happened to it for `after` seconds. While another runner is alive, which may
        have what the job needs, its owner is only warned, once. This runner must itself have reached the store for one
        lease time without a gap.
        """
        async with self._database.writing(CLAIM_LOCK) as tx:
            me = await touch(tx, runner_id, self._database.lease_seconds)
            if tx.now - me.reached_since < self._database.lease_seconds:
                return ()
            others = await tx.session.scalars(others_query(runner_id, tx.now - self._database.lease_seconds))
            alone = others.first() is None
            quiet = (await tx.session.execute(quiet_query(tx.now - after))).all()
            unfit = [job_id for job_id, needs in quiet if assign_devices(load_needs(needs), devices) is None]
            found = [await _strand(tx, job_id, me.host, alone=alone) for job_id in unfit]
            await tx.session.flush()
            return tuple(to_job(job) for job in found if job is not None and alone)


async def _strand(tx: Transaction, job_id: str, host: str, *, alone: bool) -> JobRow | None:
    job = await find_job(tx, job_id)
    if job is None or job.status != JobStatus.QUEUED:
        return None  # its owner has changed it since the query
    wanted = describe(load_needs(job.needs))
    if not alone:
        add_event(tx, job, f"The job waits for {wanted}, which {host} does not have", level="warn", code=STRANDED)
        return job
    why = f"No runner has {wanted} any more: the job is planned anew. With another plan weights agree within rounding"
    add_event(tx, job, why, level="warn", code=STRANDED)
    job.needs = job.prepared = None
    change_status(tx, job, JobStatus.VALIDATING, "The job is prepared again")
    return job


def describe(needs: Sequence[DeviceNeed]) -> str:
    """The needs as text: "2 × NVIDIA L4"."""
    names = [need.name or need.kind for need in needs]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def quiet_query(before: float) -> Select[str, str | None]:
    """Queued jobs whose last event is older, and is not the warning that they are stranded."""
    last = (EventRow.job_id == JobRow.id) & (EventRow.seq == JobRow.last_event)
    warned = EventRow.data.contains(f'"code":"{STRANDED}"')
    found = select(JobRow.id, JobRow.needs).join(EventRow, last)
    return found.where(JobRow.status == JobStatus.QUEUED, EventRow.time < before, ~warned).order_by(JobRow.id)


def others_query(runner_id: str, since: float) -> Select[str]:
    """Other runners that have reached the store since then."""
    return select(RunnerRow.id).where(RunnerRow.id != runner_id, RunnerRow.reached_at >= since)

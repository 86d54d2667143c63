"""Queued jobs whose devices are gone: planned anew for the devices that there are."""

from collections.abc import Sequence

from sqlalchemy import Select, select

from onyx.jobs.models import DeviceNeed, Job, RunnerDevice
from onyx.jobs.status import JobStatus
from onyx.jobs.store.claims import assign_devices
from onyx.jobs.store.database import CLAIM_LOCK, Concern, Transaction
from onyx.jobs.store.lifecycle import find_job, move, say
from onyx.jobs.store.rows import load_needs, to_job
from onyx.jobs.store.runners import touch
from onyx.jobs.store.tables import EventRow, JobRow, RunnerRow

STRANDED = "stranded"
"""The code of the event that says so."""


class StrandedJobs(Concern):
    """What becomes of them."""

    async def replan(self, runner_id: str, devices: Sequence[RunnerDevice], *, after: float) -> tuple[Job, ...]:
        """Send jobs back to be planned anew that none of `devices`, all that the runner has, could ever run.

        Only jobs that nothing has happened to for `after` seconds, and only if no other runner is there, which might
        have what they need: then their owner is warned, once. Like whoever expires a lease, a runner must have reached
        the store for one lease time without a gap.
        """
        async with self._database.writing(CLAIM_LOCK) as tx:
            me = await touch(tx, runner_id, self._database.lease_seconds)
            if tx.now - me.reached_since < self._database.lease_seconds:
                return ()
            alone = (
                await tx.session.scalars(others_query(runner_id, tx.now - self._database.lease_seconds))
            ).first() is None
            quiet = (await tx.session.execute(quiet_query(tx.now - after))).all()
            strays = [job_id for job_id, needs in quiet if assign_devices(load_needs(needs), devices) is None]
            found = [await _strand(tx, job_id, me.host, alone=alone) for job_id in strays]
            await tx.session.flush()
            return tuple(to_job(job) for job in found if job is not None and alone)


async def _strand(tx: Transaction, job_id: str, host: str, *, alone: bool) -> JobRow | None:
    job = await find_job(tx, job_id)
    if job is None or job.status != JobStatus.QUEUED:
        return None  # its owner was quicker
    wanted = describe(load_needs(job.needs))
    if not alone:
        say(tx, job, f"The job waits for {wanted}, which {host} does not have", level="warn", code=STRANDED)
        return job
    why = f"Nobody offers {wanted} any more: the job is planned anew. With another plan weights agree within rounding"
    say(tx, job, why, level="warn", code=STRANDED)
    job.needs = job.prepared = None
    move(tx, job, JobStatus.VALIDATING, "The job is prepared again")
    return job


def describe(needs: Sequence[DeviceNeed]) -> str:
    """Devices for people: "2 × NVIDIA L4"."""
    names = [need.name or need.kind for need in needs]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def quiet_query(before: float) -> Select[str, str | None]:
    """Queued jobs whose last event is older, and is not the warning that they are stranded."""
    last = (EventRow.job_id == JobRow.id) & (EventRow.seq == JobRow.last_event)
    told = EventRow.data.contains(f'"code":"{STRANDED}"')
    found = select(JobRow.id, JobRow.needs).join(EventRow, last)
    return found.where(JobRow.status == JobStatus.QUEUED, EventRow.time < before, ~told).order_by(JobRow.id)


def others_query(runner_id: str, since: float) -> Select[str]:
    """Runners that were heard of since then."""
    return select(RunnerRow.id).where(RunnerRow.id != runner_id, RunnerRow.reached_at >= since)

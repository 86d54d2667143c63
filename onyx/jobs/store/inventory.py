"""Counts of jobs, runners and devices, for an operator's dashboard."""

from dataclasses import dataclass

from sqlalchemy import func, select

from onyx.jobs.status import JobStatus
from onyx.jobs.store.database import Concern
from onyx.jobs.store.tables import DeviceRow, JobRow, RunnerRow


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The store's counts at one moment."""

    jobs: dict[JobStatus, int]
    """Every status, also those that no job has."""

    waiting_seconds: float
    """How long the oldest queued job has waited; 0 without one."""

    runners: int
    """Runners that reached the store within a lease."""

    devices_lent: int
    """Devices that jobs run on."""


class Inventory(Concern):
    """Cheap enough for a request every few seconds: it reads indexes and short tables only."""

    async def counts(self) -> Counts:
        """The counts now."""
        by_status = select(JobRow.status, func.count()).group_by(JobRow.status)
        oldest = select(func.min(JobRow.queued_at)).where(JobRow.status == JobStatus.QUEUED)
        async with self._database.reading() as session:
            now = await self._database.clock.now(session)
            alive = select(func.count()).where(RunnerRow.reached_at > now - self._database.lease_seconds)
            found = {JobStatus(status): count for status, count in await session.execute(by_status)}
            since = (await session.execute(oldest)).scalar_one()
            return Counts(
                jobs={status: found.get(status, 0) for status in JobStatus},
                waiting_seconds=max(0.0, now - since) if since is not None else 0.0,
                runners=(await session.execute(alive)).scalar_one(),
                devices_lent=(await session.execute(select(func.count()).select_from(DeviceRow))).scalar_one(),
            )

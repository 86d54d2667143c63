"""How many: what an operator's dashboard asks the store every few seconds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from onyx.jobs import json_text as jsontext
from onyx.jobs.status import OPEN, TERMINAL, JobStatus
from onyx.jobs.store.database import Concern
from onyx.jobs.store.tables import DeviceRow, FileRow, JobRow, RunnerRow


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The store at one moment."""

    jobs: dict[JobStatus, int]
    """Every status, also those that no job has."""

    waiting_seconds: float
    """How long the oldest queued job has waited; 0 without one."""

    runners: int
    """Runners that reached the store within a lease."""

    devices_lent: int
    """Devices that jobs run on."""


class Inventory(Concern):
    """Answered from indexes and short tables."""

    async def counts(self) -> Counts:
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


CHUNK = 500
"""Names in one query: databases have a limit."""


@dataclass(frozen=True, kw_only=True)
class InUse:
    """What unfinished jobs need."""

    data: frozenset[str]
    """Names of prepared directories."""

    jobs: frozenset[str]
    """Former jobs whose models are their bases."""

    files: frozenset[str]
    """Names of the data files that they were made with."""


class RetentionQueries(Concern):
    """For housekeeping and quotas."""

    async def jobs_of(self, owner: str) -> dict[str, JobStatus]:
        """All jobs of an owner. The index answers, however long their rows are."""
        async with self._database.reading() as session:
            rows = await session.execute(select(JobRow.id, JobRow.status).where(JobRow.owner == owner))
            return {job_id: JobStatus(status) for job_id, status in rows}

    async def in_use(self) -> InUse:
        """What must not be cleared away now."""
        query = select(JobRow.spec, JobRow.prepared).where(JobRow.status.in_(sorted(OPEN)))
        data, jobs, files = set(), set(), set()
        async with self._database.reading() as session:
            for text, prepared in await session.execute(query):
                spec = jsontext.load(text)
                jobs.add(spec["model"].partition(":")[0])
                files |= {Path(path).name for path in (spec["data"]["path"], spec["data"]["evaluation_path"]) if path}
                if prepared:
                    data.add(Path(jsontext.load(prepared).get("data_dir", "")).name)
        return InUse(data=frozenset(data), jobs=frozenset(jobs), files=frozenset(files))

    async def finished_times(self, job_ids: Sequence[str]) -> dict[str, float | None]:
        """When these jobs ended, None for those that have not; what is missing in the answer is no job."""
        found: dict[str, float | None] = {}
        async with self._database.reading() as session:
            for start in range(0, len(job_ids), CHUNK):
                chunk = job_ids[start : start + CHUNK]
                rows = await session.execute(select(JobRow.id, JobRow.finished_at).where(JobRow.id.in_(chunk)))
                found |= {job_id: at for job_id, at in rows}  # noqa: C416 - for the types
        return found

    async def finished_before(self, time: float, but: Collection[str] = ()) -> tuple[str, ...]:
        """Some of the jobs that ended before a time."""
        query = select(JobRow.id).where(JobRow.status.in_(sorted(TERMINAL)), JobRow.finished_at <= time)
        async with self._database.reading() as session:
            rows = await session.scalars(query.order_by(JobRow.finished_at).limit(CHUNK + len(but)))
            return tuple(job_id for job_id in rows if job_id not in but)

    async def known_files(self, file_ids: Sequence[str]) -> set[str]:
        """Those of the ids that are files."""
        found: set[str] = set()
        async with self._database.reading() as session:
            for start in range(0, len(file_ids), CHUNK):
                chunk = file_ids[start : start + CHUNK]
                found |= set(await session.scalars(select(FileRow.id).where(FileRow.id.in_(chunk))))
        return found

"""What housekeeping asks the store before it removes a file."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from onyx.jobs.status import OPEN, TERMINAL
from onyx.jobs.store import json_text
from onyx.jobs.store.database import MAX_NAMES, Concern
from onyx.jobs.store.tables import JobRow


@dataclass(frozen=True, kw_only=True)
class InUse:
    """What unfinished jobs need."""

    data: frozenset[str]
    """Names of prepared directories."""

    jobs: frozenset[str]
    """Former jobs whose models are their bases."""

    files: frozenset[str]
    """Names of the data files that they were made with."""


class Retention(Concern):
    """For housekeeping and quotas."""

    async def in_use(self) -> InUse:
        """What must not be cleared away now."""
        query = select(JobRow.spec, JobRow.prepared).where(JobRow.status.in_(sorted(OPEN)))
        data, jobs, files = set(), set(), set()
        async with self._database.reading() as session:
            for text, prepared in await session.execute(query):
                spec = json_text.load(text)
                jobs.add(spec["model"].partition(":")[0])
                files |= {Path(path).name for path in (spec["data"]["path"], spec["data"]["evaluation_path"]) if path}
                if prepared:
                    data.add(Path(json_text.load(prepared).get("data_dir", "")).name)
        return InUse(data=frozenset(data), jobs=frozenset(jobs), files=frozenset(files))

    async def finished_times(self, job_ids: Sequence[str]) -> dict[str, float | None]:
        """When these jobs ended, None for those that have not; what is missing in the answer is no job."""
        found: dict[str, float | None] = {}
        async with self._database.reading() as session:
            for start in range(0, len(job_ids), MAX_NAMES):
                chunk = job_ids[start : start + MAX_NAMES]
                rows = await session.execute(select(JobRow.id, JobRow.finished_at).where(JobRow.id.in_(chunk)))
                found |= {job_id: at for job_id, at in rows}  # noqa: C416 - for the types
        return found

    async def finished_before(self, time: float, but: Collection[str] = ()) -> tuple[str, ...]:
        """Some of the jobs that ended before a time."""
        query = select(JobRow.id).where(JobRow.status.in_(sorted(TERMINAL)), JobRow.finished_at <= time)
        async with self._database.reading() as session:
            rows = await session.scalars(query.order_by(JobRow.finished_at).limit(MAX_NAMES + len(but)))
            return tuple(job_id for job_id in rows if job_id not in but)

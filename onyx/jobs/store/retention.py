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
    """Files that unfinished jobs need."""

    data: frozenset[str]
    """Names of the directories with their prepared data."""

    jobs: frozenset[str]
    """Ids of the jobs whose models they start from."""

    files: frozenset[str]
    """Names of their data files."""


class Retention(Concern):
    """Which jobs have ended, and which files are still in use."""

    async def in_use(self) -> InUse:
        """What housekeeping must not remove now."""
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
        """When each of these jobs ended, None if it has not. Ids that are no jobs are left out."""
        found: dict[str, float | None] = {}
        async with self._database.reading() as session:
            for start in range(0, len(job_ids), MAX_NAMES):
                chunk = job_ids[start : start + MAX_NAMES]
                rows = await session.execute(select(JobRow.id, JobRow.finished_at).where(JobRow.id.in_(chunk)))
                found |= {job_id: at for job_id, at in rows}  # noqa: C416 - for the types
        return found

    async def finished_before(self, time: float, excluded: Collection[str] = ()) -> tuple[str, ...]:
        """Up to MAX_NAMES jobs that ended before `time`, oldest first."""
        query = select(JobRow.id).where(JobRow.status.in_(sorted(TERMINAL)), JobRow.finished_at <= time)
        async with self._database.reading() as session:
            rows = await session.scalars(query.order_by(JobRow.finished_at).limit(MAX_NAMES + len(excluded)))
            return tuple(job_id for job_id in rows if job_id not in excluded)

"""Limits on the disk: free space that the operator keeps, and a quota per owner."""

import asyncio
import shutil
from pathlib import Path

from onyx.jobs.errors import DiskQuotaError, LowDiskError, StoreError
from onyx.jobs.job_directory import disk_usage
from onyx.jobs.status import JobStatus
from onyx.jobs.store.store import Store
from onyx.settings import Settings


class DiskQuota:
    """Checked before a job is created or a file is stored."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._sizes: dict[str, tuple[int, int]] = {}

    async def refusal(self, owner: str, more: int = 0) -> StoreError | None:
        """Why this owner cannot have another job, or a file of `more` bytes; None if it can."""
        if is_low(self._settings, more):
            return LowDiskError("the disk of this service is nearly full: try again when its operator has freed space")
        limit = self._settings.owner_disk_bytes
        if limit is None:
            return None
        used = await self.used(owner)
        if used + more <= limit if more else used < limit:
            return None
        return DiskQuotaError(
            f"your trainings and files take {used:,} of the {limit:,} bytes that one owner may have here"
            f"{f', and this one has {more:,}' if more else ''}: delete trainings or files that you no longer need"
        )

    async def bytes_for_files(self, owner: str) -> int | None:
        """Bytes that an owner's files may take in total, beside its jobs; None without a limit."""
        limit = self._settings.owner_disk_bytes
        return None if limit is None else limit - await self._used_by_jobs(owner)

    async def used(self, owner: str) -> int:
        """Bytes of an owner's jobs and files."""
        return await self._store.uploads.stored_bytes(owner) + await self._used_by_jobs(owner)

    async def _used_by_jobs(self, owner: str) -> int:
        return await asyncio.to_thread(self._of_jobs, await self._store.jobs.statuses(owner))

    def _of_jobs(self, jobs: dict[str, JobStatus]) -> int:
        return sum(self._of_job(job_id, finished=status.terminal) for job_id, status in jobs.items())

    def _of_job(self, job_id: str, *, finished: bool) -> int:
        """Measure one job. A finished one is measured again only when the time of its directory has changed."""
        folder = self._settings.job_dir(job_id)
        try:
            changed = folder.stat().st_mtime_ns
        except OSError:
            return 0
        known = self._sizes.get(job_id)
        if finished and known is not None and known[0] == changed:
            return known[1]
        size = disk_usage(folder)
        if finished:
            self._sizes[job_id] = (changed, size)
        return size


def is_low(settings: Settings, more: int = 0) -> bool:
    """Whether `more` bytes would leave less on the disk than the operator keeps free."""
    return free_bytes(settings.home) - more < settings.free_disk_bytes


def free_bytes(folder: Path) -> int:
    """Bytes that the disk has left for this process."""
    return shutil.disk_usage(folder).free

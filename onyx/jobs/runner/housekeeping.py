"""Housekeeping: a runner deletes what is no longer kept under ONYX_HOME, at intervals.

The functions at the top decide and touch nothing; `Housekeeping` asks the store and deletes. Each step is idempotent.
"""

import asyncio
import contextlib
import fcntl
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from onyx import fs
from onyx.jobs.errors import JobNotFoundError, StoreUnavailableError
from onyx.jobs.ids import is_id
from onyx.jobs.job_directory import WORKING, free_working_files, remove_job
from onyx.jobs.store.retention import InUse
from onyx.jobs.store.store import Store
from onyx.settings import Settings

logger = logging.getLogger(__name__)

DAY = 86_400.0

_CONTENT = re.compile(r"[0-9a-f]{64}\.jsonl")
SAFE_SECONDS = DAY
"""What is younger may belong to a process that has not written to the store yet: no helper runs for so long."""


class Due(Enum):
    """What of a job may be deleted."""

    NOTHING = auto()
    WORKING = auto()
    """Its working files."""

    ALL = auto()


@dataclass(frozen=True)
class Aged:
    """A file or directory."""

    path: Path
    changed: float
    size: int = 0


def due(finished_at: float | None, now: float, settings: Settings) -> Due:
    """What is no longer kept of a job that ended at `finished_at`."""
    if finished_at is None:
        return Due.NOTHING
    age = (now - finished_at) / DAY
    if settings.keep_job_days is not None and age >= settings.keep_job_days:
        return Due.ALL
    if settings.keep_working_days is not None and age >= settings.keep_working_days:
        return Due.WORKING
    return Due.NOTHING


def unused(there: list[Aged], used: frozenset[str], now: float) -> list[Aged]:
    """Prepared data that no unfinished job needs. A later job with the same data prepares it again."""
    return [each for each in there if each.path.name not in used and now - each.changed > SAFE_SECONDS]


def orphans(there: list[Aged], known: Mapping[str, object], now: float) -> list[Aged]:
    """Files of jobs and uploads that the store does not know: a process was killed while it deleted them."""
    ours = [each for each in there if is_id(_id(each.path))]
    return [each for each in ours if _id(each.path) not in known and now - each.changed > SAFE_SECONDS]


def surplus(entries: list[Aged], limit: int) -> list[Aged]:
    """The oldest entries, so many that the rest fits into `limit` bytes."""
    total, gone = sum(entry.size for entry in entries), []
    for entry in sorted(entries, key=lambda entry: entry.changed):
        if total <= limit:
            break
        gone.append(entry)
        total -= entry.size
    return gone


class Housekeeping:
    """One round per interval, by one runner of a home at a time."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    async def run(self) -> None:
        while True:
            try:
                with _try_lock(self._settings.run_dir / "housekeeping.lock") as locked:
                    if locked:
                        await self.round()
            except StoreUnavailableError as error:
                logger.warning("no housekeeping now: %s", error, extra={"action": "housekeeping_failed"})
            except Exception:  # the next round may succeed, and jobs must not suffer
                logger.exception("a round of housekeeping failed", extra={"action": "housekeeping_failed"})
            await asyncio.sleep(self._settings.housekeeping_seconds)

    async def round(self) -> dict[str, int]:
        """Every step once; how many of each kind were deleted."""
        in_use = await self._store.retention.in_use()
        gone = {
            "jobs": await self._old_jobs(in_use),
            "working_files": await self._working_files(),
            "orphans": await self._orphans(),
            "uploads": await self._uploads(in_use),
            "data": await self._data(in_use),
            "cache": await self._cache(),
            "leftovers": await asyncio.to_thread(_clear_leftovers, self._settings.home),
        }
        if any(gone.values()):
            logger.info("deleted: %s", gone, extra={"action": "housekeeping"})
        return gone

    async def _old_jobs(self, in_use: InUse) -> int:
        days = self._settings.keep_job_days
        if days is None:
            return 0
        before = await self._store.now() - days * DAY
        count = 0
        while jobs := await self._store.retention.finished_before(before, in_use.jobs):
            for job_id in jobs:
                with contextlib.suppress(JobNotFoundError):  # its owner has just deleted it
                    await self._store.jobs.delete(job_id)
                await remove_job(self._settings, job_id)
            count += len(jobs)
        return count

    async def _working_files(self) -> int:
        if self._settings.keep_working_days is None:
            return 0
        names = await asyncio.to_thread(_with_working_files, self._settings.home / "jobs")
        now = await self._store.now()
        times = await self._store.retention.finished_times(names)
        old = [name for name, at in times.items() if due(at, now, self._settings) is not Due.NOTHING]
        return sum([await free_working_files(self._settings, name) for name in old])

    async def _orphans(self) -> int:
        jobs = await asyncio.to_thread(_aged, self._settings.home / "jobs")
        known = await self._store.retention.finished_times([_id(each.path) for each in jobs])
        files = await asyncio.to_thread(_aged, self._settings.home / "uploads")
        stored = await self._store.uploads.existing([_id(each.path) for each in files])
        gone = orphans(jobs, known, time.time()) + orphans(files, dict.fromkeys(stored), time.time())
        return await asyncio.to_thread(_remove, gone)

    async def _uploads(self, in_use: InUse) -> int:
        """Expired uploads that no unfinished job reads."""
        home, count = self._settings.home, 0
        for file in await self._store.uploads.expired():
            if file.path(home).name not in in_use.files:
                await self._store.uploads.delete(file.id)
                file.path(home).unlink(missing_ok=True)
                count += 1
        return count

    async def _data(self, in_use: InUse) -> int:
        there = await asyncio.to_thread(_aged, self._settings.home / "data")
        written = await asyncio.to_thread(_aged, self._settings.home / "uploads", _written_by_the_library)
        gone = unused(there, in_use.data, time.time()) + unused(written, in_use.files, time.time())
        return await asyncio.to_thread(_remove, gone)

    async def _cache(self) -> int:
        entries = await asyncio.to_thread(_aged, self._settings.home / "cache", _files_below)
        return await asyncio.to_thread(_remove, surplus(entries, self._settings.planner_cache_bytes))


def _id(path: Path) -> str:
    """The id in a file's or a directory's name."""
    return path.name.partition(".")[0]


def _children(folder: Path) -> Iterator[Path]:
    """Entries of a directory, without locks and files that are still being written: those begin with a dot."""
    return (path for path in folder.iterdir() if not path.name.startswith("."))


def _with_working_files(folder: Path) -> list[str]:
    there = _aged(folder)
    return [each.path.name for each in there if any((each.path / part).is_dir() for part in WORKING)]


def _written_by_the_library(uploads: Path) -> Iterator[Path]:
    """Data sets that the library wrote because they were too large for a job's row. They are named by content."""
    return (path for path in _children(uploads) if _CONTENT.fullmatch(path.name))


def _files_below(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.json")


def _aged(folder: Path, find: Callable[[Path], Iterator[Path]] = _children) -> list[Aged]:
    found = []
    if folder.is_dir():
        for path in find(folder):
            with contextlib.suppress(OSError):  # gone meanwhile
                stat = path.stat()
                found.append(Aged(path, stat.st_mtime, stat.st_size))
    return found


def _remove(gone: list[Aged]) -> int:
    """Delete the entries that have not changed since they were listed. Each is renamed first: no reader sees half."""
    count = 0
    for each in gone:
        with contextlib.suppress(OSError):
            if each.path.stat().st_mtime != each.changed:
                continue
            fs.remove(each.path)
            count += 1
    return count


def _clear_leftovers(home: Path) -> int:
    """Delete temporary files and directories of processes that were killed while they wrote or removed something."""
    folders = [home, *(home / name for name in ("data", "models", "uploads", "cache", "jobs"))]
    for pattern in ("cache/*", "jobs/*", "jobs/*/attempts/*", "jobs/*/checkpoints", "jobs/*/snapshots"):
        folders += home.glob(pattern)
    return sum(fs.sweep(folder, older_than=SAFE_SECONDS) for folder in folders)


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Whether no other runner does it now. On a file system without locks two may: it is idempotent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True

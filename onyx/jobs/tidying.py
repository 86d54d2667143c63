"""What a job leaves on the disk, and when it may go."""

import asyncio
import shutil
from pathlib import Path

from onyx.jobs.ids import is_id
from onyx.jobs.store import Store
from onyx.settings import Settings

WORKING = ("checkpoints", "attempts")
"""What only a job that is not finished needs. Models, snapshots and metrics.csv stay."""


async def remove_job(settings: Settings, job_id: str) -> None:
    """Everything that a deleted job had."""
    if is_id(job_id):
        await asyncio.to_thread(shutil.rmtree, settings.job_dir(job_id), ignore_errors=True)


async def free_working_files(settings: Settings, job_id: str) -> bool:
    """Whether a finished job had any working files left; they are gone then."""
    folders = [settings.job_dir(job_id) / name for name in WORKING] if is_id(job_id) else []
    there = [folder for folder in folders if folder.is_dir()]
    for folder in there:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return bool(there)


async def remove_expired_files(store: Store, settings: Settings) -> int:
    """How many uploads were past their time; they are gone then. The store forgets them first."""
    expired = await store.expired_files()
    for file in expired:
        await store.delete_file(file.id)
        file.path(settings.home).unlink(missing_ok=True)
    return len(expired)


def disk_usage(folder: Path) -> int:
    """Bytes of the files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())

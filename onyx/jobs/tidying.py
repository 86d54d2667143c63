"""What a job leaves on the disk, and when it may go."""

import asyncio
import shutil
from pathlib import Path

from onyx.jobs.ids import is_id
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


def disk_usage(folder: Path) -> int:
    """Bytes of the files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())

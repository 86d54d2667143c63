"""The directory of a job: which models in it are served, and which of its files are removed when."""

import asyncio
import shutil
from pathlib import Path

from onyx import fs
from onyx.jobs.ids import is_id
from onyx.jobs.models import Job
from onyx.jobs.status import JobStatus
from onyx.settings import Settings

MODEL = "model"
"""Where ranks publish the model, shortly before the store learns that the job has succeeded."""

WORKING = ("checkpoints", "attempts")
"""What only an unfinished job needs. Models, snapshots and metrics.csv stay."""


def serves(job: Job, name: str) -> bool:
    """Whether the model `name` of this job may be read: its id names the model, `<id>:epoch-2` a snapshot.

    A job that is cancelled, fails or loses its ranks after publishing may have left a model: that one is not served.
    Snapshots belong to the owner from the moment they exist.
    """
    return job.status is JobStatus.SUCCEEDED or ":" in name


async def withdraw_model(settings: Settings, job_id: str) -> None:
    """Remove the model, whole or partly written, of a job that ended without success."""
    if is_id(job_id):
        await asyncio.to_thread(_withdraw, settings, job_id)


def _withdraw(settings: Settings, job_id: str) -> None:
    folder = settings.job_dir(job_id)
    if (folder / MODEL).is_dir():
        fs.remove(folder / MODEL)
    fs.sweep(folder)


async def remove_job(settings: Settings, job_id: str) -> None:
    """Remove every file of a deleted job."""
    if is_id(job_id):
        await asyncio.to_thread(shutil.rmtree, settings.job_dir(job_id), ignore_errors=True)


async def free_working_files(settings: Settings, job_id: str) -> bool:
    """Remove the working files of a finished job; whether there were any."""
    folders = [settings.job_dir(job_id) / name for name in WORKING] if is_id(job_id) else []
    found = [folder for folder in folders if folder.is_dir()]
    for folder in found:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return bool(found)


def disk_usage(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())

"""The model of a job: served once the job has succeeded, withdrawn when it ends otherwise."""

import asyncio

from onyx import fs
from onyx.jobs.ids import is_id
from onyx.jobs.models import Job
from onyx.jobs.status import JobStatus
from onyx.settings import Settings

MODEL = "model"
"""Its directory below the job's. Ranks publish it shortly before the store hears that the job has succeeded."""


def serves(job: Job, name: str) -> bool:
    """Whether a job gives out what `name` stands for: its id for the model, `<id>:epoch-2` for a snapshot.

    A job that is cancelled, fails or loses its ranks between publishing and success may have left a model.
    Snapshots are its owner's from the moment they are there.
    """
    return job.status is JobStatus.SUCCEEDED or ":" in name


async def withdraw(settings: Settings, job_id: str) -> None:
    """Remove the model that a job has published, or half published, before it ended without success."""
    if is_id(job_id):
        await asyncio.to_thread(_withdraw, settings, job_id)


def _withdraw(settings: Settings, job_id: str) -> None:
    folder = settings.job_dir(job_id)
    if (folder / MODEL).is_dir():
        fs.remove(folder / MODEL)
    fs.sweep(folder)

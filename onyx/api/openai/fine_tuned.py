"""Fine-tuned models and their checkpoints: found by name, as long as their directories are there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onyx.api.caller import Caller
from onyx.api.desk import Desk
from onyx.api.openai.naming import MODEL_PREFIX, checkpoint_name, model_name, read_model_name
from onyx.jobs.status import JobStatus
from onyx.jobs.values import Job
from onyx.settings import Settings


@dataclass(frozen=True, kw_only=True)
class FineTunedModel:
    """A model that a job made."""

    name: str
    """`ft:…`."""

    job: Job
    path: Path
    epoch: int | None
    """Of the snapshot; None for the finished model."""

    @property
    def spec_model(self) -> str:
        """How a job's spec names it."""
        return self.job.id if self.epoch is None else f"{self.job.id}:epoch-{self.epoch}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A checkpoint in OpenAI's sense, that is still there."""

    epoch: int
    step: int
    time: float
    numbers: dict[str, Any]
    path: Path


async def find_model(name: str, desk: Desk, caller: Caller) -> FineTunedModel | None:
    """The model of this name, if it is the caller's and there."""
    said = read_model_name(name)
    job = await desk.store.get(said.job_id, caller.sees) if said is not None else None
    if said is None or job is None or model_name(job) != said.model:
        return None
    if said.step is None:
        path = desk.settings.job_dir(job.id) / "model"
        there = job.status is JobStatus.SUCCEEDED and path.is_dir()
        return FineTunedModel(name=name, job=job, path=path, epoch=None) if there else None
    found = [each for each in await snapshots_of(desk, job) if each.step == said.step]
    return FineTunedModel(name=name, job=job, path=found[0].path, epoch=found[0].epoch) if found else None


async def snapshots_of(desk: Desk, job: Job) -> list[Snapshot]:
    """Those that are kept, newest first."""
    folder = desk.settings.job_dir(job.id) / "snapshots"
    said = [
        Snapshot(
            epoch=event.data["epoch"],
            step=event.data["update"],
            time=event.time,
            numbers=event.data,
            path=folder / f"epoch-{event.data['epoch']}",
        )
        for event in await desk.store.snapshots(job.id)
    ]
    return [each for each in said if each.path.is_dir()]


def models_of(settings: Settings, job: Job) -> list[str]:
    """The names of what a succeeded job has left: the model, then its checkpoints."""
    folder = settings.job_dir(job.id)
    if job.result is None or not (folder / "model").is_dir():
        return []
    kept = [entry for entry in job.result.epochs if (folder / "snapshots" / f"epoch-{entry['epoch']}").is_dir()]
    return [model_name(job), *(checkpoint_name(job, entry["update"]) for entry in kept)]


def is_fine_tuned(name: str) -> bool:
    """Whether a name claims to be one of a fine-tuned model."""
    return name.startswith(MODEL_PREFIX)

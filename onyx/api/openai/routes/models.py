"""Models: base models, and the fine-tuned models that jobs have published."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath

from onyx import fs
from onyx.api.app_context import AppContext
from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.caller import Caller
from onyx.api.openai.deps import OpenAIRoute
from onyx.api.openai.errors import invalid, model_not_found
from onyx.api.openai.model_catalogue import (
    BaseModelEntry,
    FineTunedModel,
    base_models,
    find_model,
    is_fine_tuned,
    models_of,
)
from onyx.api.openai.schemas.models import ModelDeleted, ModelObject, ModelPage
from onyx.jobs.models import Job
from onyx.jobs.status import OPEN, JobStatus

router = APIRouter(route_class=OpenAIRoute, tags=["models"])

MOST_JOBS = 1000
"""How many jobs a list of models covers, newest first."""

ModelId = Annotated[str, InPath(max_length=1024)]


@router.get("/models")
async def list_models(context: ContextDep, caller: CallerDep) -> ModelPage:
    """List base models, your fine-tuned models and their checkpoints."""
    page = await context.store.jobs.list(owner=caller.sees, statuses=(JobStatus.SUCCEEDED,), limit=MOST_JOBS)
    return ModelPage(data=await asyncio.to_thread(_all_models, context, page.jobs))


@router.get("/models/{model:path}")
async def retrieve_model(model: ModelId, context: ContextDep, caller: CallerDep) -> ModelObject:
    """Retrieve a model."""
    if is_fine_tuned(model):
        found = await find_model(model, context, caller)
        if found is not None:
            return _object(model, found.job)
    for base in await asyncio.to_thread(base_models, context.settings):
        if base.name == model:
            return _base_object(base)
    raise model_not_found(model)


@router.delete("/models/{model:path}")
async def delete_model(model: ModelId, context: ContextDep, caller: CallerDep) -> ModelDeleted:
    """Delete a fine-tuned model with its checkpoints, or one checkpoint. The record of its job stays."""
    found = await find_model(model, context, caller)
    if found is None and any(base.name == model for base in await asyncio.to_thread(base_models, context.settings)):
        raise invalid("only fine-tuned models can be deleted: base models belong to the operator", "model")
    if found is None:
        raise model_not_found(model)
    if not found.job.status.terminal:
        raise invalid(f"{found.job.id} is {found.job.status}: cancel it first, or wait", "model", code="invalid_status")
    await _refuse_if_used(found, context, caller)
    folder = context.settings.job_dir(found.job.id)
    paths = [found.path] if found.epoch is not None else [folder / "model", folder / "snapshots"]
    await asyncio.to_thread(remove, paths)
    return ModelDeleted(id=model, deleted=True)


async def _refuse_if_used(found: FineTunedModel, context: AppContext, caller: Caller) -> None:
    page = await context.store.jobs.list(owner=caller.sees, statuses=OPEN, limit=MOST_JOBS)
    for job in page.jobs:
        if job.spec.model.partition(":")[0] == found.job.id:
            raise invalid(f"{job.id} is {job.status} and uses this model: wait until it ends", "model", code="in_use")


def _all_models(context: AppContext, jobs: tuple[Job, ...]) -> list[ModelObject]:
    fine_tuned = [_object(name, job) for job in jobs for name in models_of(context.settings, job)]
    return [_base_object(base) for base in base_models(context.settings)] + fine_tuned


def _base_object(base: BaseModelEntry) -> ModelObject:
    return ModelObject(id=base.name, created=base.created, owned_by=base.owner)


def _object(name: str, job: Job) -> ModelObject:
    return ModelObject(id=name, created=int(job.finished_at or job.created_at), owned_by=job.owner)


def remove(paths: list[Path]) -> None:
    """Remove the directories that exist. Each is renamed first, so that no reader finds half a model."""
    for path in paths:
        with suppress(FileNotFoundError):  # another request has removed it, or the job kept no snapshot
            fs.remove(path)

"""Create, list, read, cancel, pause, resume and delete trainings."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from onyx.api.create_training import NewTraining, answer_of
from onyx.api.deps import CallerDep, ContextDep, JobDep, TrainingId
from onyx.api.onyx_route import OnyxRoute
from onyx.api.schemas.common import WITH_BODY, Done, problems
from onyx.api.schemas.training import TrainingAnswer, TrainingPage
from onyx.jobs.ids import JobKind
from onyx.jobs.job_directory import remove_job
from onyx.jobs.status import JobStatus

router = APIRouter(route_class=OnyxRoute, tags=["training"])

_CREATED: dict[int | str, dict[str, Any]] = {
    200: {"model": TrainingAnswer, "description": "The training ended while the client waited"},
    **problems(*WITH_BODY, 404),
}


@router.post("/training/with-accumulation", status_code=202, responses=_CREATED)
async def train_with_accumulation(new: Annotated[NewTraining, Depends()]) -> TrainingAnswer:
    """Start a fine-tuning job and answer at once; it runs in the background."""
    return await new.create(JobKind.ACCUMULATION)


@router.post("/training/large-batch", status_code=202, responses=_CREATED)
async def train_large_batch(new: Annotated[NewTraining, Depends()]) -> TrainingAnswer:
    """The same; the documentation has both names. Without N both use the largest micro-batch that fits."""
    return await new.create(JobKind.LARGE_BATCH)


@router.get("/training", responses=problems(422))
async def list_trainings(
    context: ContextDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    status: Annotated[list[JobStatus] | None, Query(max_length=10)] = None,
) -> TrainingPage:
    """The caller's trainings, newest first."""
    page = await context.store.jobs.list(owner=caller.sees, statuses=status or (), after=after, limit=limit)
    return TrainingPage(data=[await answer_of(job, context) for job in page.jobs], has_more=page.more)


@router.get("/training/{training_id}", responses=problems(404, 422))
async def get_training(job: JobDep, context: ContextDep) -> TrainingAnswer:
    """The state of a training, with the numbers of its last updates."""
    return await answer_of(job, context, metrics=True)


@router.post("/training/{training_id}/cancel", responses=problems(400, 404, 422))
async def cancel_training(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> TrainingAnswer:
    """Cancel a training. No model is published."""
    return await answer_of(await context.home.cancel(training_id, caller.sees), context)


@router.post("/training/{training_id}/pause", responses=problems(400, 404, 422))
async def pause_training(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> TrainingAnswer:
    """Save a checkpoint and release the devices until the training is resumed."""
    return await answer_of(await context.home.pause(training_id, caller.sees), context)


@router.post("/training/{training_id}/resume", responses=problems(400, 404, 422))
async def resume_training(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> TrainingAnswer:
    """Continue a paused training from its checkpoint; the final weights are the same bits as without the pause."""
    return await answer_of(await context.home.resume(training_id, caller.sees), context)


@router.delete("/training/{training_id}", responses=problems(400, 404, 422))
async def delete_training(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> Done:
    """Remove a finished training with its data and its model."""
    await context.store.jobs.delete(training_id, caller.sees)
    await remove_job(context.settings, training_id)
    return Done(training_id=training_id, message="The training was deleted with its data and its model")

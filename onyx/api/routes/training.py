"""Trainings: made, looked at, stopped, gone on with, deleted."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from onyx.api.create_training import NewTraining, answer_of
from onyx.api.deps import CallerDep, ContextDep, JobDep, TrainingId
from onyx.api.http.route import OnyxRoute
from onyx.api.schemas.common import WITH_BODY, Done, problems
from onyx.api.schemas.training import TrainingAnswer, TrainingPage
from onyx.jobs.ids import JobKind
from onyx.jobs.job_directory import remove_job
from onyx.jobs.status import JobStatus

router = APIRouter(route_class=OnyxRoute, tags=["training"])

_CREATED: dict[int | str, dict[str, Any]] = {
    200: {"model": TrainingAnswer, "description": "It ended while it was waited for"},
    **problems(*WITH_BODY, 404),
}


@router.post("/training/with-accumulation", status_code=202, responses=_CREATED)
async def train_with_accumulation(asked: Annotated[NewTraining, Depends()]) -> TrainingAnswer:
    """Fine-tune in the background. Answers at once with what is known."""
    return await asked.create(JobKind.ACCUMULATION)


@router.post("/training/large-batch", status_code=202, responses=_CREATED)
async def train_large_batch(asked: Annotated[NewTraining, Depends()]) -> TrainingAnswer:
    """The same under the document's other name; without N both take the largest micro-batch that fits."""
    return await asked.create(JobKind.LARGE_BATCH)


@router.get("/training", responses=problems(422))
async def list_trainings(
    context: ContextDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    status: Annotated[list[JobStatus] | None, Query(max_length=10)] = None,
) -> TrainingPage:
    """Your trainings, newest first."""
    page = await context.store.jobs.list(owner=caller.sees, statuses=status or (), after=after, limit=limit)
    return TrainingPage(data=[await answer_of(job, context) for job in page.jobs], has_more=page.more)


@router.get("/training/{training_id}", responses=problems(404, 422))
async def get_training(job: JobDep, context: ContextDep) -> TrainingAnswer:
    """How a training stands."""
    return await answer_of(job, context, metrics=True)


@router.post("/training/{training_id}/cancel", responses=problems(400, 404, 422))
async def cancel_training(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> TrainingAnswer:
    """End it. What it has learnt so far is not published."""
    return await answer_of(await context.home.cancel(training_id, caller.sees), context)


@router.post("/training/{training_id}/pause", responses=problems(400, 404, 422))
async def pause_training(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> TrainingAnswer:
    """Save, and give its devices to others until it is resumed."""
    return await answer_of(await context.home.pause(training_id, caller.sees), context)


@router.post("/training/{training_id}/resume", responses=problems(400, 404, 422))
async def resume_training(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> TrainingAnswer:
    """Go on from where it was paused; the final weights are the same bits."""
    return await answer_of(await context.home.resume(training_id, caller.sees), context)


@router.delete("/training/{training_id}", responses=problems(400, 404, 422))
async def delete_training(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> Done:
    """Remove a finished training with its data and its model."""
    await context.store.jobs.delete(training_id, caller.sees)
    await remove_job(context.settings, training_id)
    return Done(training_id=training_id, message="The training was deleted with its data and its model")

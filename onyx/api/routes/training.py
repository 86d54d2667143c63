"""Trainings: made, looked at, stopped, gone on with, deleted."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response, status

from onyx.api.answering import answer_of
from onyx.api.asking import spec_of
from onyx.api.deps import CallerDep, DeskDep, JobDep, TrainingId
from onyx.api.route import OnyxRoute
from onyx.api.schemas.common import WITH_BODY, Done, problems
from onyx.api.schemas.training import TrainingAnswer, TrainingBody, TrainingPage
from onyx.jobs.ids import JobKind
from onyx.jobs.status import JobStatus
from onyx.jobs.tidying import remove_job
from onyx.jobs.values import Job

router = APIRouter(route_class=OnyxRoute, tags=["training"])

_CREATED: dict[int | str, dict[str, Any]] = {
    200: {"model": TrainingAnswer, "description": "It ended while it was waited for"},
    **problems(*WITH_BODY, 404),
}

LOOK_SECONDS = 1.0
"""Between two looks at whether a client that waits is still there."""

Wait = Annotated[
    float | None, Query(ge=0, le=3600, description="Answer 200 when the training ends within so many seconds")
]
IdempotencyKey = Annotated[
    str | None, Header(max_length=255, description="The same key and body give the same training, however often")
]


@router.post("/training/with-accumulation", status_code=202, responses=_CREATED)
async def train_with_accumulation(
    request: Request,
    response: Response,
    body: TrainingBody,
    desk: DeskDep,
    caller: CallerDep,
    wait: Wait = None,
    idempotency_key: IdempotencyKey = None,
) -> TrainingAnswer:
    """Fine-tune in the background. Answers at once with what is known."""
    return await _create(JobKind.ACCUMULATION, request, response, body, desk, caller, wait, idempotency_key)


@router.post("/training/large-batch", status_code=202, responses=_CREATED)
async def train_large_batch(
    request: Request,
    response: Response,
    body: TrainingBody,
    desk: DeskDep,
    caller: CallerDep,
    wait: Wait = None,
    idempotency_key: IdempotencyKey = None,
) -> TrainingAnswer:
    """The same with the largest micro-batch that fits."""
    return await _create(JobKind.LARGE_BATCH, request, response, body, desk, caller, wait, idempotency_key)


@router.get("/training", responses=problems(422))
async def list_trainings(
    desk: DeskDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    status: Annotated[list[JobStatus] | None, Query(max_length=10)] = None,
) -> TrainingPage:
    """Your trainings, newest first."""
    page = await desk.store.list_jobs(owner=caller.sees, statuses=status or (), after=after, limit=limit)
    return TrainingPage(data=[await answer_of(job, desk) for job in page.jobs], has_more=page.more)


@router.get("/training/{training_id}", responses=problems(404, 422))
async def get_training(job: JobDep, desk: DeskDep) -> TrainingAnswer:
    """How a training stands."""
    return await answer_of(job, desk, metrics=True)


@router.post("/training/{training_id}/cancel", responses=problems(400, 404, 422))
async def cancel_training(training_id: TrainingId, desk: DeskDep, caller: CallerDep) -> TrainingAnswer:
    """End it. What it has learnt so far is not published."""
    return await answer_of(await desk.home.cancel(training_id, caller.sees), desk)


@router.post("/training/{training_id}/pause", responses=problems(400, 404, 422))
async def pause_training(training_id: TrainingId, desk: DeskDep, caller: CallerDep) -> TrainingAnswer:
    """Save, and give its devices to others until it is resumed."""
    return await answer_of(await desk.home.pause(training_id, caller.sees), desk)


@router.post("/training/{training_id}/resume", responses=problems(400, 404, 422))
async def resume_training(training_id: TrainingId, desk: DeskDep, caller: CallerDep) -> TrainingAnswer:
    """Go on from where it was paused; the final weights are the same bits."""
    return await answer_of(await desk.home.resume(training_id, caller.sees), desk)


@router.delete("/training/{training_id}", responses=problems(400, 404, 422))
async def delete_training(training_id: TrainingId, desk: DeskDep, caller: CallerDep) -> Done:
    """Remove a finished training with its data and its model."""
    await desk.store.delete(training_id, caller.sees)
    await remove_job(desk.settings, training_id)
    return Done(training_id=training_id, message="The training was deleted with its data and its model")


async def _create(
    kind: JobKind,
    request: Request,
    response: Response,
    body: TrainingBody,
    desk: DeskDep,
    caller: CallerDep,
    wait: float | None,
    idempotency_key: str | None,
) -> TrainingAnswer:
    spec = await spec_of(body, desk, caller)
    job = await desk.home.submit(spec, caller.owner(body.user_id), kind, idempotency_key=idempotency_key)
    request.state.made = job.id
    if wait is not None:
        with desk.streams.one(caller.counted_as):
            job = await _ended(request, desk, job, wait)
        if job.status.terminal:
            response.status_code = status.HTTP_200_OK
    return await answer_of(job, desk, metrics=True)


async def _ended(request: Request, desk: DeskDep, job: Job, seconds: float) -> Job:
    """The job when it has ended, or the time is over, or nobody is there any more to hear of it."""
    until = time.monotonic() + seconds
    while not job.status.terminal and (left := until - time.monotonic()) > 0 and not await request.is_disconnected():
        job = await desk.wait(job.id, min(left, LOOK_SECONDS))
        if desk.leaving.is_set():
            break
    return job

"""Checkpoints in OpenAI's sense: the snapshots of a job that are still on disk, each usable as a model."""

from typing import Annotated

from fastapi import APIRouter, Query

from onyx.api.deps import ContextDep
from onyx.api.openai.deps import JobDep, OpenAIRoute
from onyx.api.openai.errors import invalid
from onyx.api.openai.model_catalogue import Snapshot, snapshots_of
from onyx.api.openai.names import checkpoint_id, checkpoint_name
from onyx.api.openai.schemas.jobs import CheckpointMetrics, CheckpointObject, CheckpointPage
from onyx.jobs.models import Job

router = APIRouter(route_class=OpenAIRoute, tags=["fine-tuning"])


@router.get("/fine_tuning/jobs/{fine_tuning_job_id}/checkpoints")
async def list_checkpoints(
    job: JobDep,
    context: ContextDep,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
) -> CheckpointPage:
    """A job's checkpoints, newest first. The best and the last three are kept."""
    found = [checkpoint_object(job, snapshot) for snapshot in await snapshots_of(context, job)]
    start = 0
    if after is not None:
        ids = [each.id for each in found]
        if after not in ids:
            raise invalid(f"{job.id} has no checkpoint {after[:80]!r}", "after")
        start = ids.index(after) + 1
    page = found[start : start + limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return CheckpointPage(data=page, first_id=first, last_id=last, has_more=start + limit < len(found))


def checkpoint_object(job: Job, snapshot: Snapshot) -> CheckpointObject:
    loss, accuracy = (snapshot.numbers.get(name) for name in ("evaluation_loss", "evaluation_accuracy"))
    return CheckpointObject(
        id=checkpoint_id(job.id, snapshot.step),
        created_at=int(snapshot.time),
        fine_tuned_model_checkpoint=checkpoint_name(job, snapshot.step),
        fine_tuning_job_id=job.id,
        step_number=snapshot.step,
        metrics=CheckpointMetrics(
            step=snapshot.step,
            train_loss=snapshot.numbers.get("train_loss"),
            train_mean_token_accuracy=snapshot.numbers.get("train_accuracy"),
            valid_loss=loss,
            valid_mean_token_accuracy=accuracy,
            full_valid_loss=loss,  # every evaluation covers all of the evaluation data
            full_valid_mean_token_accuracy=accuracy,
        ),
    )

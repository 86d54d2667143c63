"""A job's events, newest first."""

from typing import Annotated, Literal, cast

from fastapi import APIRouter, Query

from onyx.api.deps import ContextDep
from onyx.api.http.scrubbing import scrub_event
from onyx.api.openai.deps import JobDep, OpenAIRoute
from onyx.api.openai.errors import invalid
from onyx.api.openai.names import event_id, read_event_id
from onyx.api.openai.schemas.jobs import EventObject, EventPage
from onyx.jobs.records import StoredEvent
from onyx.training.contract import event_kinds

router = APIRouter(route_class=OpenAIRoute, tags=["fine-tuning"])


@router.get("/fine_tuning/jobs/{fine_tuning_job_id}/events")
async def list_events(
    job: JobDep,
    context: ContextDep,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> EventPage:
    """A page of the job's events, newest first. An event keeps its id."""
    before = read_event_id(after, job.id) if after is not None else None
    if after is not None and before is None:
        raise invalid(f"{job.id} has no event {after[:80]!r}", "after")
    events = await context.store.events.list(job.id, after=before, limit=limit, newest_first=True)
    shown = [event_object(scrub_event(event, context.settings)) for event in events]
    return EventPage(data=shown, has_more=bool(events) and events[-1].seq > 1)


def event_object(event: StoredEvent) -> EventObject:
    is_metrics = event.kind == event_kinds.METRICS
    data = event.data
    if is_metrics:
        data = {
            "step": data.get("update"),
            "train_loss": data.get("loss"),
            "train_mean_token_accuracy": data.get("token_accuracy", data.get("preference_accuracy")),
        } | data
    return EventObject(
        id=event_id(event.job_id, event.seq),
        created_at=int(event.time),
        level=cast(Literal["info", "warn", "error"], event.level),
        message=event.message,
        type="metrics" if is_metrics else "message",
        data=data,
    )

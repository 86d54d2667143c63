"""What happened to a training: by page, or as it happens."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import Response, StreamingResponse

from onyx.api.app_context import AppContext
from onyx.api.deps import CallerDep, ContextDep, JobDep
from onyx.api.http.caller import Caller
from onyx.api.http.route import OnyxRoute
from onyx.api.http.scrubbing import scrub_event
from onyx.api.schemas.common import problems
from onyx.api.schemas.training import EventAnswer, EventPage
from onyx.jobs.records import StoredEvent

router = APIRouter(route_class=OnyxRoute, tags=["training"])

STREAM = "text/event-stream"
LOOK_SECONDS = 0.3
"""Between two looks at a job that is streamed."""

KEEPALIVE_SECONDS = 10.0
PAGE = 500
MOST_EVENTS = 2**62


@router.get(
    "/training/{training_id}/events",
    response_model=EventPage,
    responses={200: {"content": {STREAM: {"schema": {"type": "string"}}}}, **problems(404, 422)},
)
async def list_events(
    request: Request,
    job: JobDep,
    context: ContextDep,
    caller: CallerDep,
    after: Annotated[int, Query(ge=0, le=MOST_EVENTS)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    last_event_id: Annotated[str | None, Header(max_length=64, description="Where a broken stream goes on")] = None,
) -> EventPage | Response:
    """In order, from `after` on; with `Accept: text/event-stream` as they happen, ending in `event: done`."""
    if STREAM in request.headers.get("accept", ""):
        seen = last_event_id or ""
        start = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 19 else after
        context.streams.check(caller.counted_as)
        stream = _stream(context, caller, job.id, start)
        return StreamingResponse(stream, media_type=STREAM, headers={"Cache-Control": "no-store"})
    events = await context.store.events.list(job.id, after=after, limit=limit)
    last = events[-1].seq if events else after
    return EventPage(data=[event_answer(event, context) for event in events], has_more=last < job.last_event)


async def _stream(context: AppContext, caller: Caller, job_id: str, after: int) -> AsyncIterator[bytes]:
    with context.streams.one(caller.counted_as):
        async for part in _parts(context, caller, job_id, after):
            yield part


async def _parts(context: AppContext, caller: Caller, job_id: str, after: int) -> AsyncIterator[bytes]:
    quiet = 0.0
    while await context.still_admits(caller):
        job = await context.store.jobs.get(job_id)  # before its events: what it says is over has said all it will
        events = await context.store.events.list(job_id, after=after, limit=PAGE)
        for event in events:
            after = event.seq
            yield format_sse_event(data_str=event_answer(event, context).model_dump_json(), id=str(after))
        if job is None or (job.status.terminal and after >= job.last_event):
            status = str(job.status) if job else "deleted"
            yield format_sse_event(event="done", data_str=json.dumps({"training_id": job_id, "status": status}))
            return
        if context.leaving.is_set():  # whoever listens comes back with its last event's id
            return
        if len(events) == PAGE:
            continue
        quiet = 0.0 if events else quiet + LOOK_SECONDS
        if quiet >= KEEPALIVE_SECONDS:
            quiet = 0.0
            yield KEEPALIVE_COMMENT
        await asyncio.sleep(LOOK_SECONDS)


def event_answer(event: StoredEvent, context: AppContext) -> EventAnswer:
    """What its owner may read of it: paths of the host stay with the operator."""
    fields = asdict(scrub_event(event, context.settings))
    return EventAnswer(**{name: fields[name] for name in EventAnswer.model_fields})

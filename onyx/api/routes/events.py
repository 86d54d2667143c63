"""Events of a training, as pages or as a server-sent event stream."""

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
from onyx.api.http.scrubbing import scrub_event
from onyx.api.onyx_route import OnyxRoute
from onyx.api.schemas.common import problems
from onyx.api.schemas.training import EventAnswer, EventPage
from onyx.jobs.records import StoredEvent

router = APIRouter(route_class=OnyxRoute, tags=["training"])

STREAM = "text/event-stream"
POLL_SECONDS = 0.3
"""Time between two reads of a job that is streamed."""

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
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="Resume a broken stream after this event")
    ] = None,
) -> EventPage | Response:
    """In order, after `after`. With `Accept: text/event-stream` a stream that ends with `event: done`."""
    if STREAM in request.headers.get("accept", ""):
        context.streams.check(caller.limit_key)
        stream = _stream(context, caller, job.id, _start(last_event_id, after))
        return StreamingResponse(stream, media_type=STREAM, headers={"Cache-Control": "no-store"})
    events = await context.store.events.list(job.id, after=after, limit=limit)
    last = events[-1].seq if events else after
    return EventPage(data=[event_answer(event, context) for event in events], has_more=last < job.last_event)


def _start(last_event_id: str | None, after: int) -> int:
    """The event after which a stream begins: `Last-Event-ID` if it is a number, else the query's `after`."""
    text = last_event_id or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else after


async def _stream(context: AppContext, caller: Caller, job_id: str, after: int) -> AsyncIterator[bytes]:
    with context.streams.slot(caller.limit_key):
        async for part in _parts(context, caller, job_id, after):
            yield part


async def _parts(context: AppContext, caller: Caller, job_id: str, after: int) -> AsyncIterator[bytes]:
    quiet = 0.0
    while await context.still_admits(caller):
        job = await context.store.jobs.get(job_id)  # before its events: a job that has ended gets no more of them
        events = await context.store.events.list(job_id, after=after, limit=PAGE)
        for event in events:
            after = event.seq
            yield format_sse_event(data_str=event_answer(event, context).model_dump_json(), id=str(after))
        if job is None or (job.status.terminal and after >= job.last_event):
            status = str(job.status) if job else "deleted"
            yield format_sse_event(event="done", data_str=json.dumps({"training_id": job_id, "status": status}))
            return
        if context.stopping.is_set():  # the client reconnects with the id of its last event
            return
        if len(events) == PAGE:
            continue
        quiet = 0.0 if events else quiet + POLL_SECONDS
        if quiet >= KEEPALIVE_SECONDS:
            quiet = 0.0
            yield KEEPALIVE_COMMENT
        await asyncio.sleep(POLL_SECONDS)


def event_answer(event: StoredEvent, context: AppContext) -> EventAnswer:
    """An event as its owner may read it, without paths of the host."""
    fields = asdict(scrub_event(event, context.settings))
    return EventAnswer(**{name: fields[name] for name in EventAnswer.model_fields})

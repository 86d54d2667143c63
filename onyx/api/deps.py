"""What handlers ask for, by type."""

from typing import Annotated

from fastapi import Depends, Path
from fastapi.security import HTTPBearer
from starlette.requests import Request

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.http.errors import not_found
from onyx.jobs.models import Job


def _context(request: Request) -> AppContext:
    context: AppContext = request.state.context
    return context


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


BEARER = HTTPBearer(
    auto_error=False, scheme_name="API key", description="Made by `onyx keys create`. Without any key: this host only."
)
"""For the docs' Authorize button; the context itself looks at the header."""

ContextDep = Annotated[AppContext, Depends(_context)]
CallerDep = Annotated[Caller, Depends(_caller)]
TrainingId = Annotated[str, Path(description="An id that Onyx made", max_length=128)]


async def _job(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> Job:
    job = await context.store.jobs.get(training_id, caller.sees)
    if job is None:
        raise not_found("training", training_id)
    return job


JobDep = Annotated[Job, Depends(_job)]
"""The caller's job that the path names; 404 for anybody else's."""

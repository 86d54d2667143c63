"""Types that handlers put on their parameters: FastAPI fills in the app context, the caller, and the caller's job."""

from typing import Annotated

from fastapi import Depends, Path
from fastapi.security import HTTPBearer
from starlette.requests import Request

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.http.errors import not_found
from onyx.jobs.models import Job

BEARER = HTTPBearer(
    auto_error=False,
    scheme_name="API key",
    description="Made by `onyx keys create`. While there are no keys, only this host is served.",
)
"""Shows the docs' Authorize button. `AppContext.admit` does the check."""


def _context(request: Request) -> AppContext:
    context: AppContext = request.state.context
    return context


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


# ContextProvider has set both before any handler runs.
ContextDep = Annotated[AppContext, Depends(_context)]
CallerDep = Annotated[Caller, Depends(_caller)]
TrainingId = Annotated[str, Path(description="An id that Onyx made", max_length=128)]


async def _job(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> Job:
    job = await context.store.jobs.get(training_id, caller.sees)
    if job is None:
        raise not_found("training", training_id)
    return job


JobDep = Annotated[Job, Depends(_job)]
"""The job that the path names. 404 if there is none, or if it belongs to another owner."""

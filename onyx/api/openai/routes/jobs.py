"""Fine-tuning jobs: made, looked at, stopped, gone on with. They are the jobs of every other API of Onyx."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from onyx.api.deps import CallerDep, ContextDep
from onyx.api.openai.deps import PARAM, JobDep, OpenAIRoute
from onyx.api.openai.errors import wrong
from onyx.api.openai.job_request import asked_for
from onyx.api.openai.presenters import answer_of, answers_of
from onyx.api.openai.schemas.jobs import JobBody, JobObject, JobPage
from onyx.jobs.errors import BadValueError, NotAllowedError
from onyx.jobs.ids import JobKind
from onyx.jobs.models import Job

router = APIRouter(route_class=OpenAIRoute, tags=["fine-tuning"])

AGAIN_SECONDS = 900.0
"""How late the client may send a request again: it waits 600 seconds for an answer, and a while between tries."""

_MOST_PAIRS = 16


@router.post("/fine_tuning/jobs")
async def create_job(
    request: Request,
    body: JobBody,
    context: ContextDep,
    caller: CallerDep,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
    x_stainless_retry_count: Annotated[str | None, Header(max_length=16)] = None,
) -> JobObject:
    """Fine-tune a model. A request that the client sends again, because its answer was lost, makes no second job."""
    asked = await asked_for(body, context, caller)
    again = idempotency_key is None and (x_stainless_retry_count or "0") != "0"
    job = await context.home.submit(
        asked.spec,
        asked.owner,
        JobKind.FINE_TUNING,
        idempotency_key=idempotency_key,
        again_within=AGAIN_SECONDS if again else None,
    )
    request.state.made = job.id
    return await answer_of(job, context)


@router.get("/fine_tuning/jobs")
async def list_jobs(
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    metadata: Annotated[str | None, Query(max_length=16, description="null; pairs are metadata[key]=value")] = None,
) -> JobPage:
    """Your jobs, newest first."""
    if metadata not in (None, "", "null"):
        raise wrong("filter by metadata[key]=value, or by metadata=null for jobs without any", "metadata")
    pairs = _pairs(request.query_params)
    wanted = {} if metadata == "null" else pairs or None
    try:
        page = await context.store.jobs.list(owner=caller.sees, metadata=wanted, after=after, limit=limit)
    except BadValueError as error:
        raise wrong(str(error), "after") from None
    return JobPage(data=await answers_of(page.jobs, context), has_more=page.more)


@router.get("/fine_tuning/jobs/{fine_tuning_job_id}")
async def get_job(job: JobDep, context: ContextDep) -> JobObject:
    """How a job stands."""
    return await answer_of(job, context)


@router.post("/fine_tuning/jobs/{fine_tuning_job_id}/cancel")
async def cancel_job(job: JobDep, context: ContextDep, caller: CallerDep) -> JobObject:
    """End it."""
    return await answer_of(await _change(context.home.cancel, job, caller.sees), context)


@router.post("/fine_tuning/jobs/{fine_tuning_job_id}/pause")
async def pause_job(job: JobDep, context: ContextDep, caller: CallerDep) -> JobObject:
    """Save, and give its devices to others until it is resumed."""
    return await answer_of(await _change(context.home.pause, job, caller.sees), context)


@router.post("/fine_tuning/jobs/{fine_tuning_job_id}/resume")
async def resume_job(job: JobDep, context: ContextDep, caller: CallerDep) -> JobObject:
    """Go on, or start a job that was made with `auto_start: false`."""
    return await answer_of(await _change(context.home.resume, job, caller.sees), context)


async def _change(change: Callable[[str, str | None], Awaitable[Job]], job: Job, owner: str | None) -> Job:
    try:
        return await change(job.id, owner)
    except NotAllowedError as error:  # 400: the client would try a 409 again
        raise wrong(str(error), PARAM, code="invalid_status") from None


def _pairs(query: Mapping[str, str]) -> dict[str, str]:
    """The pairs of `metadata[key]=value`."""
    pairs = {name[9:-1]: value for name, value in query.items() if name.startswith("metadata[") and name[-1] == "]"}
    if len(pairs) > _MOST_PAIRS:
        raise wrong(f"a job has at most {_MOST_PAIRS} pairs of metadata", "metadata")
    return pairs

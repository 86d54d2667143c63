"""Fine-tuning jobs: create, list, retrieve, cancel, pause, resume. The documented API shows the same jobs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from onyx.api.deps import CallerDep, ContextDep
from onyx.api.openai.deps import PARAM, JobDep, OpenAIRoute
from onyx.api.openai.errors import invalid
from onyx.api.openai.job_request import new_job
from onyx.api.openai.presenters import present_job, present_jobs
from onyx.api.openai.schemas.jobs import JobBody, JobObject, JobPage
from onyx.jobs.errors import BadValueError, NotAllowedError
from onyx.jobs.ids import JobKind
from onyx.jobs.models import Job

router = APIRouter(route_class=OpenAIRoute, tags=["fine-tuning"])

RETRY_WINDOW_SECONDS = 900.0
"""How long a retry finds the job of its first request: the client waits 600 seconds for an answer, then retries."""

_MOST_METADATA = 16


@router.post("/fine_tuning/jobs")
async def create_job(
    request: Request,
    body: JobBody,
    context: ContextDep,
    caller: CallerDep,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
    x_stainless_retry_count: Annotated[str | None, Header(max_length=16)] = None,
) -> JobObject:
    """Create a fine-tuning job. A request that the client retries, because its answer was lost, makes no second job."""
    new = await new_job(body, context, caller)
    is_retry = idempotency_key is None and (x_stainless_retry_count or "0") != "0"
    job = await context.home.submit(
        new.spec,
        new.owner,
        JobKind.FINE_TUNING,
        idempotency_key=idempotency_key,
        again_within=RETRY_WINDOW_SECONDS if is_retry else None,
    )
    request.state.made = job.id
    return await present_job(job, context)


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
        raise invalid("filter by metadata[key]=value, or by metadata=null for jobs without any", "metadata")
    pairs = _metadata_filter(request.query_params)
    wanted = {} if metadata == "null" else pairs or None
    try:
        page = await context.store.jobs.list(owner=caller.sees, metadata=wanted, after=after, limit=limit)
    except BadValueError as error:
        raise invalid(str(error), "after") from None
    return JobPage(data=await present_jobs(page.jobs, context), has_more=page.more)


@router.get("/fine_tuning/jobs/{fine_tuning_job_id}")
async def get_job(job: JobDep, context: ContextDep) -> JobObject:
    """Retrieve a job."""
    return await present_job(job, context)


@router.post("/fine_tuning/jobs/{fine_tuning_job_id}/cancel")
async def cancel_job(job: JobDep, context: ContextDep, caller: CallerDep) -> JobObject:
    """Cancel a job."""
    return await present_job(await _change(context.home.cancel, job, caller.sees), context)


@router.post("/fine_tuning/jobs/{fine_tuning_job_id}/pause")
async def pause_job(job: JobDep, context: ContextDep, caller: CallerDep) -> JobObject:
    """Pause a job: it saves a checkpoint and gives up its devices until it is resumed."""
    return await present_job(await _change(context.home.pause, job, caller.sees), context)


@router.post("/fine_tuning/jobs/{fine_tuning_job_id}/resume")
async def resume_job(job: JobDep, context: ContextDep, caller: CallerDep) -> JobObject:
    """Resume a paused job, or start one that was created with `auto_start: false`."""
    return await present_job(await _change(context.home.resume, job, caller.sees), context)


async def _change(change: Callable[[str, str | None], Awaitable[Job]], job: Job, owner: str | None) -> Job:
    try:
        return await change(job.id, owner)
    except NotAllowedError as error:  # 400, because the client retries a 409
        raise invalid(str(error), PARAM, code="invalid_status") from None


def _metadata_filter(query: Mapping[str, str]) -> dict[str, str]:
    """The query parameters `metadata[key]=value` as a dict."""
    pairs = {name[9:-1]: value for name, value in query.items() if name.startswith("metadata[") and name[-1] == "]"}
    if len(pairs) > _MOST_METADATA:
        raise invalid(f"a job has at most {_MOST_METADATA} metadata entries", "metadata")
    return pairs

"""FastAPI dependencies and the route class of OpenAI's API."""

from typing import Annotated

from fastapi import Depends, Path
from starlette.responses import JSONResponse, Response

from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.errors import ApiError
from onyx.api.onyx_route import OnyxRoute
from onyx.api.openai.errors import error_answer, missing, status_of
from onyx.jobs.models import Job

JobId = Annotated[str, Path(description="The id of any of your jobs, whichever API made it", max_length=128)]
PARAM = "fine_tuning_job_id"


async def _job(fine_tuning_job_id: JobId, context: ContextDep, caller: CallerDep) -> Job:
    job = await context.store.jobs.get(fine_tuning_job_id, caller.sees)
    if job is None:
        raise missing("fine-tuning job", fine_tuning_job_id, PARAM)
    return job


JobDep = Annotated[Job, Depends(_job)]
"""The caller's job that the path names; 404 for jobs of other owners."""


_NOT_RETRYABLE = frozenset({"quota_exceeded", "disk_full"})
"""Error codes that retries within minutes cannot help: `x-should-retry: false` keeps the client from retrying."""


class OpenAIRoute(OnyxRoute):
    """Errors become `{"error": {message, type, param, code}}`."""

    def answer(self, error: ApiError) -> Response:
        headers = dict(error.headers or {})
        if error.code in _NOT_RETRYABLE:
            headers["x-should-retry"] = "false"
        return JSONResponse(error_answer(error).model_dump(), status_of(error), headers)

"""What the handlers of this API ask for, by type."""

from typing import Annotated

from fastapi import Depends, Path
from starlette.responses import JSONResponse, Response

from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.errors import ApiError
from onyx.api.http.route import OnyxRoute
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
"""The caller's job that the path names; 404 for anybody else's."""


_NO_USE_TRYING = frozenset({"quota_exceeded", "disk_full"})
"""Codes of what does not pass by itself in a minute: the client would wait that long, twice, for the same answer."""


class OpenAIRoute(OnyxRoute):
    """Errors become `{"error": {message, type, param, code}}`."""

    def answer(self, error: ApiError) -> Response:
        headers = dict(error.headers or {})
        if error.code in _NO_USE_TRYING:
            headers["x-should-retry"] = "false"
        return JSONResponse(error_answer(error).model_dump(), status_of(error), headers)

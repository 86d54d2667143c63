"""What the handlers of this API ask for, by type."""

from typing import Annotated

from fastapi import Depends, Path

from onyx.api.deps import CallerDep, DeskDep
from onyx.api.openai.errors import missing
from onyx.jobs.values import Job

JobId = Annotated[str, Path(description="The id of any of your jobs, whichever API made it", max_length=128)]
PARAM = "fine_tuning_job_id"


async def _job(fine_tuning_job_id: JobId, desk: DeskDep, caller: CallerDep) -> Job:
    job = await desk.store.get(fine_tuning_job_id, caller.sees)
    if job is None:
        raise missing("fine-tuning job", fine_tuning_job_id, PARAM)
    return job


JobDep = Annotated[Job, Depends(_job)]
"""The caller's job that the path names; 404 for anybody else's."""

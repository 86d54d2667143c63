"""Free the disk space that finished trainings no longer need. Cancels no job, and keeps models and records."""

from fastapi import APIRouter

from onyx.api.deps import CallerDep, ContextDep, TrainingId
from onyx.api.http.errors import not_allowed
from onyx.api.onyx_route import OnyxRoute
from onyx.api.schemas.common import Done, problems
from onyx.api.schemas.configs import Cleaned
from onyx.jobs.job_directory import free_working_files
from onyx.jobs.status import TERMINAL

router = APIRouter(route_class=OnyxRoute, tags=["cleanup"])

PAGE = 1000


@router.delete("/cleanup/{training_id}", responses=problems(400, 422))
async def clean_up(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> Done:
    """Delete a stored config, or the working files of a finished training. Succeeds for an unknown id, too."""
    job = await context.store.jobs.get(training_id, caller.sees)
    if job is not None and not job.status.terminal:
        raise not_allowed(f"{training_id} is {job.status}: cancel it first, or wait until it has ended")
    if job is not None:
        await free_working_files(context.settings, job.id)
    await context.store.configs.delete(training_id, caller.sees)
    return Done(training_id=training_id, message="Accumulation resources cleaned up successfully")


@router.delete("/cleanup")
async def clean_up_all(context: ContextDep, caller: CallerDep) -> Cleaned:
    """The same for all of the caller's configs and finished trainings."""
    cleaned = await context.store.configs.delete_all(caller.sees)
    after = None
    while True:
        page = await context.store.jobs.list(owner=caller.sees, statuses=TERMINAL, after=after, limit=PAGE)
        for job in page.jobs:
            cleaned += await free_working_files(context.settings, job.id)
        if not page.more:
            return Cleaned(message=f"{cleaned} sessions were cleaned up", cleaned_sessions=cleaned)
        after = page.jobs[-1].id

"""The jobs that run now, and how well their micro-batches are filled."""

from collections.abc import Sequence

from onyx.api.caller import Caller
from onyx.api.desk import Desk
from onyx.jobs.answering import plan_of
from onyx.jobs.status import JobStatus
from onyx.jobs.values import Job

MOST_RUNNING = 100


async def running_jobs(desk: Desk, caller: Caller) -> Sequence[Job]:
    page = await desk.store.list_jobs(owner=caller.sees, statuses=(JobStatus.RUNNING,), limit=MOST_RUNNING)
    return page.jobs


async def efficiency(desk: Desk, jobs: Sequence[Job]) -> dict[str, float]:
    """Real tokens of an update over the tokens that its micro-batches have room for, by job."""
    found = {job.id: await _filled(desk, job) for job in jobs}
    return {job_id: share for job_id, share in found.items() if share is not None}


async def _filled(desk: Desk, job: Job) -> float | None:
    plan = plan_of(job)
    metrics = await desk.store.last_metrics(job.id, 1)
    if plan is None or not metrics or not metrics[0].data.get("micro_batches"):
        return None
    data = metrics[0].data
    budget = sum(each["token_budget"] for each in plan["devices"]) / len(plan["devices"])
    filled: float = data["trained_tokens"] / data["update"] / (data["micro_batches"] * budget)
    return min(1.0, filled)

"""Bring a waiting job to the state running or ended, as a runner would: for answers about such jobs."""

from typing import Any

from onyx.jobs.home import Home
from onyx.jobs.models import ClaimedJob, DeviceNeed, JobProgress, RunnerDevice
from onyx.settings import Settings
from onyx.training.contract.attempt import Event, Failure, Result
from tests.api.service import at_home
from tests.jobs.store_harness import RESULT, holder

PLAN: dict[str, Any] = {
    "model": "onyx/tiny",
    "window": 8,
    "accumulation_steps": 2,
    "devices": [{"label": "cpu:0", "micro_batch": 4, "share": 8, "token_budget": 100}],
}
CPU = RunnerDevice(name="cpu:0", kind="cpu")


async def _running(home: Home, runner_id: str) -> ClaimedJob:
    """Validate, prepare and claim the only waiting job, on the CPU."""
    validating = await home.store.claims.claim_validating(runner_id)
    assert validating is not None
    prepared = {"planned": {"plan": PLAN, "precision": "float32"}}
    await home.store.attempts.report_prepared(validating.lease, [DeviceNeed(kind="cpu", name=None)], prepared)
    claimed = await home.store.claims.claim_queued(runner_id, (CPU,))
    assert claimed is not None
    return claimed


def start_job(at: Settings, *events: Event, progress: JobProgress | None = None) -> None:
    """Make the waiting job run, with these events and this progress."""

    async def story(home: Home) -> None:
        claimed = await _running(home, await home.store.runners.register(holder()))
        await home.store.events.mirror(claimed.lease, events)
        if progress is not None:
            await home.store.attempts.report_progress(claimed.lease, progress)

    at_home(at, story)


def end_job(at: Settings, outcome: Result | Failure = RESULT, *events: Event) -> None:
    """Make the waiting job run and end with this outcome."""

    async def story(home: Home) -> None:
        claimed = await _running(home, await home.store.runners.register(holder()))
        await home.store.events.mirror(claimed.lease, events)
        if isinstance(outcome, Failure):
            await home.store.attempts.report_failed(claimed.lease, outcome)
        else:
            await home.store.attempts.report_succeeded(claimed.lease, outcome)

    at_home(at, story)

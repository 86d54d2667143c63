import pytest

from onyx.jobs.errors import LostAttempt, NotAllowedError
from onyx.jobs.status import JobStatus, Outcome, Request
from onyx.jobs.values import ConfigChange, DeviceNeed
from tests.jobs.world import CPU, DEVICES, RESULT, World


async def test_a_job_that_does_not_run_is_cancelled_at_once(world: World) -> None:
    for job in (await world.job(), await world.job("bob")):
        cancelled = await world.store.request_cancel(job.id, job.owner)
        assert cancelled.status is JobStatus.CANCELLED
        assert cancelled.finished_at is not None
        assert await world.store.request_cancel(job.id) == cancelled  # asked again, as after a lost answer
    queued = await world.queued()
    assert (await world.store.request_cancel(queued.id)).status is JobStatus.CANCELLED
    assert await world.store.claim_queued(await world.runner(), DEVICES) is None


async def test_cancelling_during_preparation_fences_the_helper(world: World) -> None:
    await world.job()
    claimed = await world.store.claim_validating(await world.runner())
    assert claimed is not None
    await world.store.request_cancel(claimed.job.id)
    with pytest.raises(LostAttempt):
        await world.store.prepared(claimed.lease, [DeviceNeed(kind=CPU)], {})
    with pytest.raises(LostAttempt):
        await world.store.cancelled(claimed.lease)
    assert (await world.store.attempts(claimed.job.id))[0].outcome is Outcome.CANCELLED


async def test_a_running_job_is_asked(world: World) -> None:
    claimed = await world.running()
    asked = await world.store.request_cancel(claimed.job.id)
    assert (asked.status, asked.request) == (JobStatus.RUNNING, Request.CANCEL)
    assert await world.store.request_cancel(claimed.job.id) == asked
    for ask in (world.store.request_pause, world.store.resume):
        with pytest.raises(NotAllowedError, match="being cancelled"):
            await ask(claimed.job.id)
    assert (await world.store.cancelled(claimed.lease)).status is JobStatus.CANCELLED


async def test_pause_and_resume_wherever_the_job_is(world: World) -> None:
    store = world.store
    fresh = await world.job()
    assert (await store.request_pause(fresh.id)).status is JobStatus.PAUSED
    assert await store.claim_validating(await world.runner()) is None
    assert (await store.resume(fresh.id)).status is JobStatus.VALIDATING
    await store.request_cancel(fresh.id)

    queued = await world.queued()
    paused = await store.request_pause(queued.id)
    assert paused.status is JobStatus.PAUSED
    assert await store.request_pause(queued.id) == paused
    assert await store.claim_queued(await world.runner(), DEVICES) is None
    resumed = await store.resume(queued.id)
    assert resumed.status is JobStatus.QUEUED
    assert await store.resume(queued.id) == resumed
    await store.request_pause(queued.id)
    assert (await store.request_cancel(queued.id)).status is JobStatus.CANCELLED


async def test_pausing_a_running_job(world: World) -> None:
    store, runner = world.store, await world.runner()
    claimed = await world.running(runner=runner)
    await store.request_pause(claimed.job.id)
    assert (await store.paused(claimed.lease)).status is JobStatus.PAUSED
    assert await store.claim_queued(runner, DEVICES) is None
    await store.resume(claimed.job.id)
    again = await store.claim_queued(runner, DEVICES)
    assert again is not None
    assert again.lease.attempt == claimed.lease.attempt + 1


async def test_a_pause_that_was_taken_back_while_the_ranks_saved(world: World) -> None:
    claimed = await world.running()
    await world.store.request_pause(claimed.job.id)
    assert (await world.store.resume(claimed.job.id)).request is None
    assert (await world.store.paused(claimed.lease)).status is JobStatus.QUEUED


async def test_a_finished_job_takes_no_requests(world: World) -> None:
    claimed = await world.running()
    job = await world.store.succeeded(claimed.lease, RESULT)
    for ask in (world.store.request_cancel, world.store.request_pause, world.store.resume):
        with pytest.raises(NotAllowedError, match="succeeded"):
            await ask(job.id)
    with pytest.raises(NotAllowedError, match="no longer change"):
        await world.store.request_config(job.id, ConfigChange(accumulation_steps=2))
    assert await world.store.get(job.id) == job


async def test_config_changes_add_up_and_reach_later_attempts(world: World) -> None:
    store, runner = world.store, await world.runner()
    claimed = await world.running(runner=runner)
    await store.request_config(claimed.job.id, ConfigChange(gradient_clipping=0.5), "ann")
    await store.request_config(claimed.job.id, ConfigChange(accumulation_steps=8, gradient_clipping=2.0))
    await store.release(claimed.lease, Outcome.LOST)
    again = await store.claim_queued(runner, DEVICES)
    assert again is not None
    assert again.job.config is not None
    assert again.job.config.seq == 2
    assert again.job.config.change.given() == {"accumulation_steps": 8, "gradient_clipping": 2.0}


@pytest.mark.parametrize(
    "fields", [{}, {"accumulation_steps": None}, {"accumulation_steps": 0}, {"gradient_clipping": 0.0}, {"window": 3}]
)
def test_other_changes_are_refused(fields: dict[str, float | None]) -> None:
    with pytest.raises(ValueError, match=r"accumulation_steps|gradient_clipping|window"):
        ConfigChange.model_validate(fields)

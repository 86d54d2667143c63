"""Cancel, pause, resume and config changes, wherever the job is."""

import pytest

from onyx.jobs.errors import LostAttempt, NotAllowedError
from onyx.jobs.models import ConfigChange, DeviceNeed
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from tests.jobs.store_harness import CPU, DEVICES, RESULT, StoreHarness


async def test_a_job_that_does_not_run_is_cancelled_at_once(harness: StoreHarness) -> None:
    for job in (await harness.job(), await harness.job("bob")):
        cancelled = await harness.store.control.cancel(job.id, job.owner)
        assert cancelled.status is JobStatus.CANCELLED
        assert cancelled.finished_at is not None
        assert await harness.store.control.cancel(job.id) == cancelled  # repeated, as after a lost answer
    queued = await harness.queued()
    assert (await harness.store.control.cancel(queued.id)).status is JobStatus.CANCELLED
    assert await harness.store.claims.claim_queued(await harness.runner(), DEVICES) is None


async def test_cancelling_during_preparation_takes_the_lease_from_the_helper(harness: StoreHarness) -> None:
    await harness.job()
    claimed = await harness.store.claims.claim_validating(await harness.runner())
    assert claimed is not None
    await harness.store.control.cancel(claimed.job.id)
    with pytest.raises(LostAttempt):
        await harness.store.attempts.report_prepared(claimed.lease, [DeviceNeed(kind=CPU)], {})
    with pytest.raises(LostAttempt):
        await harness.store.attempts.report_cancelled(claimed.lease)
    assert (await harness.store.jobs.attempts(claimed.job.id))[0].outcome is Outcome.CANCELLED


async def test_a_running_job_is_cancelled_once_its_ranks_have_stopped(harness: StoreHarness) -> None:
    claimed = await harness.running()
    requested = await harness.store.control.cancel(claimed.job.id)
    assert (requested.status, requested.request) == (JobStatus.RUNNING, StopRequest.CANCEL)
    assert await harness.store.control.cancel(claimed.job.id) == requested
    for request in (harness.store.control.pause, harness.store.control.resume):
        with pytest.raises(NotAllowedError, match="being cancelled"):
            await request(claimed.job.id)
    assert (await harness.store.attempts.report_cancelled(claimed.lease)).status is JobStatus.CANCELLED


async def test_pause_and_resume_of_a_waiting_job(harness: StoreHarness) -> None:
    store = harness.store
    fresh = await harness.job()
    assert (await store.control.pause(fresh.id)).status is JobStatus.PAUSED
    assert await store.claims.claim_validating(await harness.runner()) is None
    assert (await store.control.resume(fresh.id)).status is JobStatus.VALIDATING
    await store.control.cancel(fresh.id)

    queued = await harness.queued()
    paused = await store.control.pause(queued.id)
    assert paused.status is JobStatus.PAUSED
    assert await store.control.pause(queued.id) == paused
    assert await store.claims.claim_queued(await harness.runner(), DEVICES) is None
    resumed = await store.control.resume(queued.id)
    assert resumed.status is JobStatus.QUEUED
    assert await store.control.resume(queued.id) == resumed
    await store.control.pause(queued.id)
    assert (await store.control.cancel(queued.id)).status is JobStatus.CANCELLED


async def test_pausing_a_running_job(harness: StoreHarness) -> None:
    store, runner = harness.store, await harness.runner()
    claimed = await harness.running(runner=runner)
    await store.control.pause(claimed.job.id)
    assert (await store.attempts.report_paused(claimed.lease)).status is JobStatus.PAUSED
    assert await store.claims.claim_queued(runner, DEVICES) is None
    await store.control.resume(claimed.job.id)
    again = await store.claims.claim_queued(runner, DEVICES)
    assert again is not None
    assert again.lease.attempt == claimed.lease.attempt + 1


async def test_a_pause_that_is_taken_back_while_the_ranks_save(harness: StoreHarness) -> None:
    claimed = await harness.running()
    await harness.store.control.pause(claimed.job.id)
    assert (await harness.store.control.resume(claimed.job.id)).request is None
    assert (await harness.store.attempts.report_paused(claimed.lease)).status is JobStatus.QUEUED


async def test_a_finished_job_takes_no_requests(harness: StoreHarness) -> None:
    claimed = await harness.running()
    job = await harness.store.attempts.report_succeeded(claimed.lease, RESULT)
    for request in (harness.store.control.cancel, harness.store.control.pause, harness.store.control.resume):
        with pytest.raises(NotAllowedError, match="succeeded"):
            await request(job.id)
    with pytest.raises(NotAllowedError, match="no longer change"):
        await harness.store.control.change_config(job.id, ConfigChange(accumulation_steps=2))
    assert await harness.store.jobs.get(job.id) == job


async def test_config_changes_add_up_and_reach_later_attempts(harness: StoreHarness) -> None:
    store, runner = harness.store, await harness.runner()
    claimed = await harness.running(runner=runner)
    await store.control.change_config(claimed.job.id, ConfigChange(gradient_clipping=0.5), "ann")
    await store.control.change_config(claimed.job.id, ConfigChange(accumulation_steps=8, gradient_clipping=2.0))
    await store.attempts.release(claimed.lease, Outcome.LOST)
    again = await store.claims.claim_queued(runner, DEVICES)
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

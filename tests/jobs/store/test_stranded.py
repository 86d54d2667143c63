"""Queued jobs that no device of a running runner fits."""

from onyx.jobs.models import DeviceNeed, RunnerDevice
from onyx.jobs.status import JobStatus
from tests.jobs.store_harness import CPU, DEVICES, LEASE, StoreHarness

OTHERS = (RunnerDevice(name="gpu-1", kind="NVIDIA L4"),)
QUIET_SECONDS = 600.0


async def test_a_lone_runner_has_the_job_planned_anew(harness: StoreHarness) -> None:
    job = await harness.queued(devices=2)
    runner = await harness.runner()
    await harness.pass_time(QUIET_SECONDS + LEASE, runner)
    (stranded,) = await harness.store.stranded.replan(runner, OTHERS, after=QUIET_SECONDS)
    assert (stranded.id, stranded.status, stranded.prepared) == (job.id, JobStatus.VALIDATING, None)
    warnings = [event for event in await harness.store.events.list(job.id) if event.level == "warn"]
    assert [event.data["code"] for event in warnings] == ["stranded"]
    assert f"2 × {CPU}" in warnings[0].message

    claimed = await harness.store.claims.claim_validating(runner)  # from here on like any other job
    assert claimed is not None
    await harness.store.attempts.report_prepared(claimed.lease, [DeviceNeed(kind="NVIDIA L4")], {"plan": {}})
    running = await harness.store.claims.claim_queued(runner, OTHERS)
    assert running is not None
    assert running.job.id == job.id


async def test_a_job_that_fits_is_left_in_the_queue(harness: StoreHarness) -> None:
    await harness.queued(devices=2)
    runner = await harness.runner()
    await harness.pass_time(QUIET_SECONDS + LEASE, runner)
    assert await harness.store.stranded.replan(runner, DEVICES, after=QUIET_SECONDS) == ()


async def test_neither_a_new_job_nor_a_silent_runner_leads_to_a_new_plan(harness: StoreHarness) -> None:
    await harness.queued()
    runner = await harness.runner()
    await harness.pass_time(QUIET_SECONDS - LEASE, runner)
    assert await harness.store.stranded.replan(runner, OTHERS, after=QUIET_SECONDS) == ()
    await harness.pass_time(2 * LEASE)  # long enough for the job, but the runner has not reached the store
    assert await harness.store.stranded.replan(runner, OTHERS, after=QUIET_SECONDS) == ()


async def test_while_another_runner_is_alive_the_owner_is_warned_once(harness: StoreHarness) -> None:
    job = await harness.queued()
    runner, other = await harness.runner(), await harness.runner("beta")
    await harness.pass_time(QUIET_SECONDS + LEASE, runner, other)
    for _ in range(2):
        assert await harness.store.stranded.replan(runner, OTHERS, after=QUIET_SECONDS) == ()
        await harness.pass_time(QUIET_SECONDS + LEASE, runner, other)
    warnings = [event for event in await harness.store.events.list(job.id) if event.level == "warn"]
    assert len(warnings) == 1
    assert "alpha" in warnings[0].message
    assert await harness.store.jobs.status(job.id) is JobStatus.QUEUED
    claimed = await harness.store.claims.claim_queued(other, DEVICES)
    assert claimed is not None


async def test_a_cancelled_job_stays_cancelled(harness: StoreHarness) -> None:
    job = await harness.queued()
    runner = await harness.runner()
    await harness.pass_time(QUIET_SECONDS + LEASE, runner)
    await harness.store.control.cancel(job.id)
    assert await harness.store.stranded.replan(runner, OTHERS, after=QUIET_SECONDS) == ()
    assert await harness.store.jobs.status(job.id) is JobStatus.CANCELLED

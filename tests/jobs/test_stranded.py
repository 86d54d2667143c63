"""Jobs whose devices are gone do not wait in silence."""

from onyx.jobs.status import JobStatus
from onyx.jobs.values import DeviceNeed, RunnerDevice
from tests.jobs.world import CPU, DEVICES, LEASE, World

OTHERS = (RunnerDevice(name="gpu-1", kind="NVIDIA L4"),)
PATIENCE = 600.0


async def test_a_lone_runner_has_it_planned_anew(world: World) -> None:
    job = await world.queued(devices=2)
    runner = await world.runner()
    await world.pass_time(PATIENCE + LEASE, runner)
    (stranded,) = await world.store.replan_stranded(runner, OTHERS, after=PATIENCE)
    assert (stranded.id, stranded.status, stranded.prepared) == (job.id, JobStatus.VALIDATING, None)
    warnings = [event for event in await world.store.list_events(job.id) if event.level == "warn"]
    assert [event.data["code"] for event in warnings] == ["stranded"]
    assert f"2 × {CPU}" in warnings[0].message

    claimed = await world.store.claim_validating(runner)  # and goes its way like any other
    assert claimed is not None
    await world.store.prepared(claimed.lease, [DeviceNeed(kind="NVIDIA L4")], {"plan": {}})
    running = await world.store.claim_queued(runner, OTHERS)
    assert running is not None
    assert running.job.id == job.id


async def test_one_that_fits_only_waits_its_turn(world: World) -> None:
    await world.queued(devices=2)
    runner = await world.runner()
    await world.pass_time(PATIENCE + LEASE, runner)
    assert await world.store.replan_stranded(runner, DEVICES, after=PATIENCE) == ()


async def test_nobody_is_hasty(world: World) -> None:
    await world.queued()
    runner = await world.runner()
    await world.pass_time(PATIENCE - LEASE, runner)
    assert await world.store.replan_stranded(runner, OTHERS, after=PATIENCE) == ()
    await world.pass_time(2 * LEASE)  # long enough for the job, but the runner has not reached the store
    assert await world.store.replan_stranded(runner, OTHERS, after=PATIENCE) == ()


async def test_another_runner_may_have_what_it_needs_so_its_owner_is_warned_once(world: World) -> None:
    job = await world.queued()
    runner, other = await world.runner(), await world.runner("beta")
    await world.pass_time(PATIENCE + LEASE, runner, other)
    for _ in range(2):
        assert await world.store.replan_stranded(runner, OTHERS, after=PATIENCE) == ()
        await world.pass_time(PATIENCE + LEASE, runner, other)
    warnings = [event for event in await world.store.list_events(job.id) if event.level == "warn"]
    assert len(warnings) == 1
    assert "alpha" in warnings[0].message
    assert await world.store.status(job.id) is JobStatus.QUEUED
    claimed = await world.store.claim_queued(other, DEVICES)
    assert claimed is not None


async def test_a_cancelled_job_stays_cancelled(world: World) -> None:
    job = await world.queued()
    runner = await world.runner()
    await world.pass_time(PATIENCE + LEASE, runner)
    await world.store.request_cancel(job.id)
    assert await world.store.replan_stranded(runner, OTHERS, after=PATIENCE) == ()
    assert await world.store.status(job.id) is JobStatus.CANCELLED

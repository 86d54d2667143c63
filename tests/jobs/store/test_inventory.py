from onyx.jobs.status import JobStatus
from tests.jobs.world import FAILURE, LEASE, World


async def test_an_empty_store_has_none_of_everything(world: World) -> None:
    counts = await world.store.inventory.counts()
    assert counts.jobs == dict.fromkeys(JobStatus, 0)
    assert (counts.waiting_seconds, counts.runners, counts.devices_lent) == (0.0, 0, 0)


async def test_jobs_runners_and_devices_are_counted(world: World) -> None:
    claimed = await world.running()
    await world.store.attempts.failed(claimed.lease, FAILURE)
    await world.running()
    await world.queued()
    await world.job()
    world.clock.ahead += LEASE / 2
    counts = await world.store.inventory.counts()
    found = {status.value: count for status, count in counts.jobs.items() if count}
    assert found == {"failed": 1, "running": 1, "queued": 1, "validating": 1}
    assert counts.devices_lent == 1
    assert counts.runners > 0
    assert LEASE / 2 <= counts.waiting_seconds < LEASE
    world.clock.ahead += LEASE
    assert (await world.store.inventory.counts()).runners == 0

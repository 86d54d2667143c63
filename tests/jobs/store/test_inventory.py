from onyx.jobs.status import JobStatus
from tests.jobs.store_harness import FAILURE, LEASE, StoreHarness


async def test_an_empty_store_counts_zero(harness: StoreHarness) -> None:
    counts = await harness.store.inventory.counts()
    assert counts.jobs == dict.fromkeys(JobStatus, 0)
    assert (counts.waiting_seconds, counts.runners, counts.devices_lent) == (0.0, 0, 0)


async def test_jobs_runners_and_devices_are_counted(harness: StoreHarness) -> None:
    claimed = await harness.running()
    await harness.store.attempts.report_failed(claimed.lease, FAILURE)
    await harness.running()
    await harness.queued()
    await harness.job()
    harness.clock.ahead += LEASE / 2
    counts = await harness.store.inventory.counts()
    found = {status.value: count for status, count in counts.jobs.items() if count}
    assert found == {"failed": 1, "running": 1, "queued": 1, "validating": 1}
    assert counts.devices_lent == 1
    assert counts.runners > 0
    assert LEASE / 2 <= counts.waiting_seconds < LEASE
    harness.clock.ahead += LEASE
    assert (await harness.store.inventory.counts()).runners == 0

import pytest

from onyx.jobs.errors import BadValueError, LostAttempt, UnknownRunnerError
from onyx.jobs.status import JobStatus, Outcome
from onyx.jobs.store.runners import FORGOTTEN_SECONDS
from tests.jobs.store_harness import DEVICES, LEASE, StoreHarness, holder


async def test_a_lapsed_job_is_taken_from_a_silent_runner(harness: StoreHarness) -> None:
    silent, other = await harness.runner("alpha"), await harness.runner("beta")
    claimed = await harness.running(runner=silent)
    await harness.pass_time(LEASE - 2, other)
    assert await harness.store.runners.expire_leases(other) == ()
    await harness.pass_time(3, other)
    (job,) = await harness.store.runners.expire_leases(other)
    assert (job.status, job.attempt, job.lost_attempts) == (JobStatus.QUEUED, claimed.lease.attempt, 1)
    assert (await harness.store.jobs.attempts(job.id))[-1].outcome is Outcome.LOST
    again = await harness.store.claims.claim_queued(other, DEVICES)
    assert again is not None
    assert (again.job.id, again.lease.attempt) == (job.id, claimed.lease.attempt + 1)


async def test_after_an_outage_every_runner_first_has_time_to_come_back(harness: StoreHarness) -> None:
    slow, quick = await harness.runner("alpha"), await harness.runner("beta")
    claimed = await harness.running(runner=slow)
    await harness.pass_time(LEASE * 2, quick)
    await harness.store.attempts.heartbeat(claimed.lease)
    await harness.pass_time(LEASE * 2)  # no runner reaches the store
    assert not (await harness.store.runners.report_alive(quick)).may_expire
    assert await harness.store.runners.expire_leases(quick) == ()
    await harness.pass_time(LEASE - 2, quick)
    assert await harness.store.runners.expire_leases(quick) == ()
    await harness.store.attempts.heartbeat(claimed.lease)
    await harness.pass_time(4, quick)
    assert (await harness.store.runners.report_alive(quick)).may_expire
    assert await harness.store.runners.expire_leases(quick) == ()


async def test_a_clock_that_jumps_ends_no_lease(harness: StoreHarness) -> None:
    holding, other = await harness.runner("alpha"), await harness.runner("beta")
    claimed = await harness.running(runner=holding)
    await harness.pass_time(LEASE - 2, other)
    for jump in (3600.0, -7200.0, 3600.0):
        harness.clock.ahead += jump
        assert await harness.store.runners.expire_leases(other) == ()
        await harness.store.attempts.heartbeat(claimed.lease)


async def test_a_heartbeat_keeps_a_job(harness: StoreHarness) -> None:
    holding, other = await harness.runner("alpha"), await harness.runner("beta")
    claimed = await harness.running(runner=holding)
    for _ in range(4):
        await harness.pass_time(LEASE / 2, other)
        await harness.store.attempts.heartbeat(claimed.lease)
        assert await harness.store.runners.expire_leases(other) == ()


async def test_a_dead_runner_of_the_same_host_is_replaced_at_once(harness: StoreHarness) -> None:
    dead, heir = await harness.runner(pid=1), await harness.runner(pid=2)
    claimed = await harness.running(runner=dead)
    (found,) = [runner for runner in await harness.store.runners.list("alpha") if runner.id == dead]
    assert found.holder == holder(pid=1)
    (job,) = await harness.store.runners.replace_dead(heir, found)
    assert (job.id, job.status) == (claimed.job.id, JobStatus.QUEUED)
    with pytest.raises(LostAttempt):
        await harness.store.attempts.heartbeat(claimed.lease)
    with pytest.raises(UnknownRunnerError):
        await harness.store.runners.report_alive(dead)
    assert await harness.store.claims.claim_queued(heir, DEVICES) is not None
    assert await harness.store.runners.replace_dead(heir, found) == ()


async def test_a_runner_of_another_host_cannot_be_replaced(harness: StoreHarness) -> None:
    here, there = await harness.runner("alpha"), await harness.runner("beta")
    (other,) = await harness.store.runners.list("beta")
    with pytest.raises(BadValueError, match="cannot be known"):
        await harness.store.runners.replace_dead(here, other)
    with pytest.raises(BadValueError, match="itself"):
        await harness.store.runners.replace_dead(there, other)


async def test_a_lost_job_is_paused_or_cancelled_if_its_owner_wants_that(harness: StoreHarness) -> None:
    dead, heir = await harness.runner(pid=1), await harness.runner(pid=2)
    paused = await harness.running("ann", dead)
    await harness.store.control.pause(paused.job.id)
    cancelled = await harness.running("bob", dead)
    await harness.store.control.cancel(cancelled.job.id)
    (found,) = [runner for runner in await harness.store.runners.list() if runner.id == dead]
    jobs = await harness.store.runners.replace_dead(heir, found)
    assert {job.id: job.status for job in jobs} == {
        paused.job.id: JobStatus.PAUSED,
        cancelled.job.id: JobStatus.CANCELLED,
    }


async def test_runners_that_retire_or_fall_silent_leave_the_list(harness: StoreHarness) -> None:
    old, leaving = await harness.runner(pid=1), await harness.runner(pid=2)
    await harness.store.runners.retire(leaving)
    assert [runner.id for runner in await harness.store.runners.list()] == [old]
    harness.clock.ahead += FORGOTTEN_SECONDS + 60
    new = await harness.runner(pid=3)
    assert [runner.id for runner in await harness.store.runners.list()] == [new]

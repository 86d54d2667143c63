import pytest

from onyx.jobs.errors import BadValueError, LostAttempt, UnknownRunnerError
from onyx.jobs.status import JobStatus, Outcome
from onyx.jobs.store.runners import FORGOTTEN_SECONDS
from tests.jobs.world import DEVICES, LEASE, World, holder


async def test_a_lapsed_job_is_taken_from_a_silent_runner(world: World) -> None:
    silent, other = await world.runner("alpha"), await world.runner("beta")
    claimed = await world.running(runner=silent)
    await world.pass_time(LEASE - 2, other)
    assert await world.store.runners.expire_leases(other) == ()
    await world.pass_time(3, other)
    (job,) = await world.store.runners.expire_leases(other)
    assert (job.status, job.attempt, job.lost_attempts) == (JobStatus.QUEUED, claimed.lease.attempt, 1)
    assert (await world.store.jobs.attempts(job.id))[-1].outcome is Outcome.LOST
    again = await world.store.claims.claim_queued(other, DEVICES)
    assert again is not None
    assert (again.job.id, again.lease.attempt) == (job.id, claimed.lease.attempt + 1)


async def test_after_an_outage_everybody_first_gets_time_to_come_back(world: World) -> None:
    slow, quick = await world.runner("alpha"), await world.runner("beta")
    claimed = await world.running(runner=slow)
    await world.pass_time(LEASE * 2, quick)
    await world.store.attempts.heartbeat(claimed.lease)
    await world.pass_time(LEASE * 2)  # nobody reaches the store
    assert not (await world.store.runners.report_alive(quick)).may_expire
    assert await world.store.runners.expire_leases(quick) == ()
    await world.pass_time(LEASE - 2, quick)
    assert await world.store.runners.expire_leases(quick) == ()
    await world.store.attempts.heartbeat(claimed.lease)
    await world.pass_time(4, quick)
    assert (await world.store.runners.report_alive(quick)).may_expire
    assert await world.store.runners.expire_leases(quick) == ()


async def test_a_clock_that_jumps_costs_nobody_a_job(world: World) -> None:
    holding, other = await world.runner("alpha"), await world.runner("beta")
    claimed = await world.running(runner=holding)
    await world.pass_time(LEASE - 2, other)
    for jump in (3600.0, -7200.0, 3600.0):
        world.clock.ahead += jump
        assert await world.store.runners.expire_leases(other) == ()
        await world.store.attempts.heartbeat(claimed.lease)


async def test_a_heartbeat_keeps_a_job(world: World) -> None:
    holding, other = await world.runner("alpha"), await world.runner("beta")
    claimed = await world.running(runner=holding)
    for _ in range(4):
        await world.pass_time(LEASE / 2, other)
        await world.store.attempts.heartbeat(claimed.lease)
        assert await world.store.runners.expire_leases(other) == ()


async def test_a_dead_runner_of_the_same_host_is_replaced_at_once(world: World) -> None:
    dead, heir = await world.runner(pid=1), await world.runner(pid=2)
    claimed = await world.running(runner=dead)
    (found,) = [runner for runner in await world.store.runners.list("alpha") if runner.id == dead]
    assert found.holder == holder(pid=1)
    (job,) = await world.store.runners.replace_dead(heir, found)
    assert (job.id, job.status) == (claimed.job.id, JobStatus.QUEUED)
    with pytest.raises(LostAttempt):
        await world.store.attempts.heartbeat(claimed.lease)
    with pytest.raises(UnknownRunnerError):
        await world.store.runners.report_alive(dead)
    assert await world.store.claims.claim_queued(heir, DEVICES) is not None
    assert await world.store.runners.replace_dead(heir, found) == ()


async def test_of_another_host_nothing_is_known(world: World) -> None:
    here, there = await world.runner("alpha"), await world.runner("beta")
    (other,) = await world.store.runners.list("beta")
    with pytest.raises(BadValueError, match="cannot be known"):
        await world.store.runners.replace_dead(here, other)
    with pytest.raises(BadValueError, match="itself"):
        await world.store.runners.replace_dead(there, other)


async def test_a_lost_job_obeys_its_owner(world: World) -> None:
    dead, heir = await world.runner(pid=1), await world.runner(pid=2)
    paused = await world.running("ann", dead)
    await world.store.requests.pause(paused.job.id)
    cancelled = await world.running("bob", dead)
    await world.store.requests.cancel(cancelled.job.id)
    (found,) = [runner for runner in await world.store.runners.list() if runner.id == dead]
    jobs = await world.store.runners.replace_dead(heir, found)
    assert {job.id: job.status for job in jobs} == {
        paused.job.id: JobStatus.PAUSED,
        cancelled.job.id: JobStatus.CANCELLED,
    }


async def test_runners_come_and_go(world: World) -> None:
    old, leaving = await world.runner(pid=1), await world.runner(pid=2)
    await world.store.runners.retire(leaving)
    assert [runner.id for runner in await world.store.runners.list()] == [old]
    world.clock.ahead += FORGOTTEN_SECONDS + 60
    new = await world.runner(pid=3)
    assert [runner.id for runner in await world.store.runners.list()] == [new]


async def test_the_marker_is_made_once(world: World) -> None:
    marker = await world.store.runners.marker()
    assert len(marker) == 32
    assert await world.store.runners.marker() == marker

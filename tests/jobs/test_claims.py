import pytest

from onyx.jobs.errors import BadValueError, UnknownRunnerError
from onyx.jobs.status import JobStatus
from onyx.jobs.store import Store
from onyx.jobs.values import DeviceNeed, RunnerDevice
from tests.jobs.world import CPU, DEVICES, LEASE, SPEC, World


async def test_a_job_to_prepare_is_claimed_once_and_needs_no_device(world: World) -> None:
    job, runner = await world.job(), await world.runner()
    claimed = await world.store.claim_validating(runner)
    assert claimed is not None
    assert (claimed.job.id, claimed.lease.attempt, claimed.devices) == (job.id, 1, ())
    assert claimed.spec == SPEC
    assert claimed.job.status is JobStatus.VALIDATING
    assert await world.store.claim_validating(runner) is None


async def test_preparing_is_fair_too(world: World) -> None:
    runner = await world.runner()
    for owner in ("ann", "ann", "bob"):
        await world.job(owner)
    owners = [claimed.job.owner for _ in range(3) if (claimed := await world.store.claim_validating(runner))]
    assert owners == ["ann", "bob", "ann"]


async def test_a_claim_takes_the_job_and_its_devices(world: World) -> None:
    claimed = await world.running()
    assert claimed.job.status is JobStatus.RUNNING
    assert claimed.lease.attempt == 2  # the first prepared it
    assert claimed.devices == DEVICES[:1]
    assert claimed.lease_until == pytest.approx(await world.store.now() + LEASE, abs=5)
    record = (await world.store.attempts(claimed.job.id))[-1]
    assert (record.devices, record.ended_at, record.outcome) == (("cpu:0",), None, None)


async def test_a_lent_device_is_lent_to_no_other_runner_of_its_host(world: World) -> None:
    await world.queued(devices=2)
    for _ in range(2):
        await world.queued()
    first, second, elsewhere = await world.runner(), await world.runner(pid=2), await world.runner("beta")
    held = await world.store.claim_queued(first, DEVICES)
    assert held is not None
    assert await world.store.claim_queued(second, DEVICES) is None
    assert await world.store.claim_queued(elsewhere, DEVICES[:1]) is not None
    await world.store.cancelled(held.lease)
    assert await world.store.claim_queued(second, DEVICES) is not None


async def test_what_is_lent_is_known_by_host(world: World) -> None:
    assert await world.store.lent("alpha") == {}
    claimed = await world.running()
    assert await world.store.lent("alpha") == {claimed.devices[0].name: claimed.lease}
    assert await world.store.lent("beta") == {}


async def test_owners_take_turns(world: World) -> None:
    for owner in ("ann", "ann", "ann", "bob", "bob", "cem"):
        await world.queued(owner)
    runner, served = await world.runner(), []
    for _ in range(6):
        claimed = await world.store.claim_queued(runner, DEVICES)
        assert claimed is not None
        served.append(claimed.job.owner)
        await world.store.cancelled(claimed.lease)
    assert served == ["ann", "bob", "cem", "ann", "bob", "ann"]


async def test_an_owner_has_a_limit(world: World) -> None:
    for owner in ("ann", "ann", "bob"):
        await world.queued(owner)
    runner, devices = await world.runner(), [RunnerDevice(name=str(n), kind=CPU) for n in range(8)]
    claims = [await world.store.claim_queued(runner, devices, max_per_owner=1) for _ in range(3)]
    assert [claimed.job.owner for claimed in claims if claimed] == ["ann", "bob"]


async def test_named_devices_and_other_kinds_are_respected(world: World) -> None:
    await world.queued(name="cpu:1")
    runner = await world.runner()
    assert await world.store.claim_queued(runner, [RunnerDevice(name="cpu:1", kind="cuda")]) is None
    assert await world.store.claim_queued(runner, DEVICES[:1]) is None
    claimed = await world.store.claim_queued(runner, DEVICES)
    assert claimed is not None
    assert claimed.devices == DEVICES[1:]


async def test_nothing_waits(world: World) -> None:
    runner = await world.runner()
    assert await world.store.claim_queued(runner, DEVICES) is None
    assert await world.store.claim_validating(runner) is None


async def test_bad_claims_are_refused(store: Store, world: World) -> None:
    with pytest.raises(UnknownRunnerError, match="register"):
        await store.claim_queued("runner-x", DEVICES)
    with pytest.raises(BadValueError, match="same name"):
        await store.claim_queued(await world.runner(), DEVICES + DEVICES)


async def test_a_look_says_which_work_waits(world: World) -> None:
    assert await world.store.waiting() == frozenset()
    await world.job()
    assert await world.store.waiting() == {JobStatus.VALIDATING}
    claimed = await world.store.claim_validating(await world.runner())
    assert claimed is not None
    assert await world.store.waiting() == frozenset()  # somebody is at it
    await world.store.prepared(claimed.lease, [DeviceNeed(kind=CPU)], {})
    await world.job()
    assert await world.store.waiting() == {JobStatus.VALIDATING, JobStatus.QUEUED}

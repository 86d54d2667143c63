import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.jobs.errors import BadValueError, UnknownRunnerError
from onyx.jobs.models import DeviceNeed, RunnerDevice
from onyx.jobs.status import JobStatus
from onyx.jobs.store.claims import PATIENCE_SECONDS, Owners, Waiting, assign_devices, choose_next_job
from onyx.jobs.store.store import Store
from tests.jobs.world import CPU, DEVICES, LEASE, SPEC, World


async def test_a_job_to_prepare_is_claimed_once_and_needs_no_device(world: World) -> None:
    job, runner = await world.job(), await world.runner()
    claimed = await world.store.claims.claim_validating(runner)
    assert claimed is not None
    assert (claimed.job.id, claimed.lease.attempt, claimed.devices) == (job.id, 1, ())
    assert claimed.spec == SPEC
    assert claimed.job.status is JobStatus.VALIDATING
    assert await world.store.claims.claim_validating(runner) is None


async def test_preparing_is_fair_too(world: World) -> None:
    runner = await world.runner()
    for owner in ("ann", "ann", "bob"):
        await world.job(owner)
    owners = [claimed.job.owner for _ in range(3) if (claimed := await world.store.claims.claim_validating(runner))]
    assert owners == ["ann", "bob", "ann"]


async def test_a_claim_takes_the_job_and_its_devices(world: World) -> None:
    claimed = await world.running()
    assert claimed.job.status is JobStatus.RUNNING
    assert claimed.lease.attempt == 2  # the first prepared it
    assert claimed.devices == DEVICES[:1]
    assert claimed.lease_until == pytest.approx(await world.store.now() + LEASE, abs=5)
    record = (await world.store.jobs.attempts(claimed.job.id))[-1]
    assert (record.devices, record.ended_at, record.outcome) == (("cpu:0",), None, None)


async def test_a_lent_device_is_lent_to_no_other_runner_of_its_host(world: World) -> None:
    await world.queued(devices=2)
    for _ in range(2):
        await world.queued()
    first, second, elsewhere = await world.runner(), await world.runner(pid=2), await world.runner("beta")
    held = await world.store.claims.claim_queued(first, DEVICES)
    assert held is not None
    assert await world.store.claims.claim_queued(second, DEVICES) is None
    assert await world.store.claims.claim_queued(elsewhere, DEVICES[:1]) is not None
    await world.store.attempts.cancelled(held.lease)
    assert await world.store.claims.claim_queued(second, DEVICES) is not None


async def test_what_is_lent_is_known_by_host(world: World) -> None:
    assert await world.store.claims.lent("alpha") == {}
    claimed = await world.running()
    assert await world.store.claims.lent("alpha") == {claimed.devices[0].name: claimed.lease}
    assert await world.store.claims.lent("beta") == {}


async def test_owners_take_turns(world: World) -> None:
    for owner in ("ann", "ann", "ann", "bob", "bob", "cem"):
        await world.queued(owner)
    runner, served = await world.runner(), []
    for _ in range(6):
        claimed = await world.store.claims.claim_queued(runner, DEVICES)
        assert claimed is not None
        served.append(claimed.job.owner)
        await world.store.attempts.cancelled(claimed.lease)
    assert served == ["ann", "bob", "cem", "ann", "bob", "ann"]


async def test_an_owner_has_a_limit(world: World) -> None:
    for owner in ("ann", "ann", "bob"):
        await world.queued(owner)
    runner, devices = await world.runner(), [RunnerDevice(name=str(n), kind=CPU) for n in range(8)]
    claims = [await world.store.claims.claim_queued(runner, devices, max_per_owner=1) for _ in range(3)]
    assert [claimed.job.owner for claimed in claims if claimed] == ["ann", "bob"]


async def test_named_devices_and_other_kinds_are_respected(world: World) -> None:
    await world.queued(name="cpu:1")
    runner = await world.runner()
    assert await world.store.claims.claim_queued(runner, [RunnerDevice(name="cpu:1", kind="cuda")]) is None
    assert await world.store.claims.claim_queued(runner, DEVICES[:1]) is None
    claimed = await world.store.claims.claim_queued(runner, DEVICES)
    assert claimed is not None
    assert claimed.devices == DEVICES[1:]


async def test_nothing_waits(world: World) -> None:
    runner = await world.runner()
    assert await world.store.claims.claim_queued(runner, DEVICES) is None
    assert await world.store.claims.claim_validating(runner) is None


async def test_bad_claims_are_refused(store: Store, world: World) -> None:
    with pytest.raises(UnknownRunnerError, match="register"):
        await store.claims.claim_queued("runner-x", DEVICES)
    with pytest.raises(BadValueError, match="same name"):
        await store.claims.claim_queued(await world.runner(), DEVICES + DEVICES)


async def test_a_look_says_which_work_waits(world: World) -> None:
    assert await world.store.claims.waiting() == frozenset()
    await world.job()
    assert await world.store.claims.waiting() == {JobStatus.VALIDATING}
    claimed = await world.store.claims.claim_validating(await world.runner())
    assert claimed is not None
    assert await world.store.claims.waiting() == frozenset()  # somebody is at it
    await world.store.attempts.prepared(claimed.lease, [DeviceNeed(kind=CPU)], {})
    await world.job()
    assert await world.store.claims.waiting() == {JobStatus.VALIDATING, JobStatus.QUEUED}


NOBODY = Owners(busy={}, served={}, limit=None)


def waiting(owner: str, oldest: float = 0.0, *, devices: int = 1, since: float = 0.0) -> Waiting:
    return Waiting(owner=owner, needs=(DeviceNeed(kind=CPU),) * devices, key="", oldest=oldest, since=since)


def chosen(
    groups: list[Waiting], owners: Owners, free: tuple[RunnerDevice, ...] = DEVICES, now: float = 0.0
) -> str | None:
    choice = choose_next_job(groups, owners, DEVICES, free, now)
    return choice[0].owner if choice else None


def test_fewest_running_then_least_recently_served_then_oldest() -> None:
    groups = [waiting("ann", 1.0), waiting("bob", 2.0), waiting("cem", 3.0)]
    assert chosen(groups, NOBODY) == "ann"
    assert chosen(groups, Owners(busy={}, served={"ann": 5.0, "cem": 4.0}, limit=None)) == "bob"
    assert chosen(groups, Owners(busy={"ann": 1, "bob": 1}, served={"cem": 9.0}, limit=None)) == "cem"


def test_an_owner_at_the_limit_waits() -> None:
    owners = Owners(busy={"ann": 1}, served={}, limit=1)
    assert chosen([waiting("ann")], owners) is None
    assert chosen([waiting("ann"), waiting("bob", 9.0)], owners) == "bob"


def test_small_jobs_slip_in_only_until_a_large_one_has_waited_long() -> None:
    groups = [waiting("ann", devices=2), waiting("bob", 9.0, since=PATIENCE_SECONDS)]
    assert chosen(groups, NOBODY, DEVICES[:1]) == "bob"
    assert chosen(groups, NOBODY, DEVICES[:1], now=PATIENCE_SECONDS + 1) is None
    assert chosen(groups, NOBODY, DEVICES, now=PATIENCE_SECONDS + 1) == "ann"


def test_a_job_that_never_fits_here_holds_nobody_up() -> None:
    groups = [waiting("ann", devices=3), waiting("bob", 9.0)]
    assert chosen(groups, NOBODY, DEVICES[:1], now=PATIENCE_SECONDS * 9) == "bob"


def test_a_named_device_is_kept_for_whoever_named_it() -> None:
    needs = (DeviceNeed(kind=CPU), DeviceNeed(kind=CPU, name="cpu:0"))
    assert assign_devices(needs, DEVICES) == (DEVICES[1], DEVICES[0])
    assert assign_devices((DeviceNeed(kind=CPU, name="cpu:7"),), DEVICES) is None
    assert assign_devices((DeviceNeed(kind="cuda"),), DEVICES) is None
    assert assign_devices((), ()) == ()


@given(st.lists(st.sampled_from("ab"), max_size=5), st.lists(st.sampled_from("ab"), max_size=5))
def test_an_assignment_uses_each_device_once_if_there_are_enough(kinds: list[str], have: list[str]) -> None:
    devices = [RunnerDevice(name=str(place), kind=kind) for place, kind in enumerate(have)]
    found = assign_devices([DeviceNeed(kind=kind) for kind in kinds], devices)
    if found is None:
        assert any(kinds.count(kind) > have.count(kind) for kind in "ab")
    else:
        assert [device.kind for device in found] == kinds
        assert len({device.name for device in found}) == len(kinds)


OTHERS = (RunnerDevice(name="gpu-1", kind="NVIDIA L4"),)
PATIENCE = 600.0


async def test_a_lone_runner_has_it_planned_anew(world: World) -> None:
    job = await world.queued(devices=2)
    runner = await world.runner()
    await world.pass_time(PATIENCE + LEASE, runner)
    (stranded,) = await world.store.stranded.replan(runner, OTHERS, after=PATIENCE)
    assert (stranded.id, stranded.status, stranded.prepared) == (job.id, JobStatus.VALIDATING, None)
    warnings = [event for event in await world.store.events.list(job.id) if event.level == "warn"]
    assert [event.data["code"] for event in warnings] == ["stranded"]
    assert f"2 × {CPU}" in warnings[0].message

    claimed = await world.store.claims.claim_validating(runner)  # and goes its way like any other
    assert claimed is not None
    await world.store.attempts.prepared(claimed.lease, [DeviceNeed(kind="NVIDIA L4")], {"plan": {}})
    running = await world.store.claims.claim_queued(runner, OTHERS)
    assert running is not None
    assert running.job.id == job.id


async def test_one_that_fits_only_waits_its_turn(world: World) -> None:
    await world.queued(devices=2)
    runner = await world.runner()
    await world.pass_time(PATIENCE + LEASE, runner)
    assert await world.store.stranded.replan(runner, DEVICES, after=PATIENCE) == ()


async def test_nobody_is_hasty(world: World) -> None:
    await world.queued()
    runner = await world.runner()
    await world.pass_time(PATIENCE - LEASE, runner)
    assert await world.store.stranded.replan(runner, OTHERS, after=PATIENCE) == ()
    await world.pass_time(2 * LEASE)  # long enough for the job, but the runner has not reached the store
    assert await world.store.stranded.replan(runner, OTHERS, after=PATIENCE) == ()


async def test_another_runner_may_have_what_it_needs_so_its_owner_is_warned_once(world: World) -> None:
    job = await world.queued()
    runner, other = await world.runner(), await world.runner("beta")
    await world.pass_time(PATIENCE + LEASE, runner, other)
    for _ in range(2):
        assert await world.store.stranded.replan(runner, OTHERS, after=PATIENCE) == ()
        await world.pass_time(PATIENCE + LEASE, runner, other)
    warnings = [event for event in await world.store.events.list(job.id) if event.level == "warn"]
    assert len(warnings) == 1
    assert "alpha" in warnings[0].message
    assert await world.store.jobs.status(job.id) is JobStatus.QUEUED
    claimed = await world.store.claims.claim_queued(other, DEVICES)
    assert claimed is not None


async def test_a_cancelled_job_stays_cancelled(world: World) -> None:
    job = await world.queued()
    runner = await world.runner()
    await world.pass_time(PATIENCE + LEASE, runner)
    await world.store.requests.cancel(job.id)
    assert await world.store.stranded.replan(runner, OTHERS, after=PATIENCE) == ()
    assert await world.store.jobs.status(job.id) is JobStatus.CANCELLED

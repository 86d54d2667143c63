import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.jobs.errors import BadValueError, UnknownRunnerError
from onyx.jobs.models import DeviceNeed, RunnerDevice
from onyx.jobs.status import JobStatus
from onyx.jobs.store.claims import PATIENCE_SECONDS, OwnerShares, WaitingGroup, assign_devices, choose_next_job
from onyx.jobs.store.store import Store
from tests.jobs.store_harness import CPU, DEVICES, LEASE, SPEC, StoreHarness


async def test_a_job_to_prepare_is_claimed_once_and_needs_no_device(harness: StoreHarness) -> None:
    job, runner = await harness.job(), await harness.runner()
    claimed = await harness.store.claims.claim_validating(runner)
    assert claimed is not None
    assert (claimed.job.id, claimed.lease.attempt, claimed.devices) == (job.id, 1, ())
    assert claimed.spec == SPEC
    assert claimed.job.status is JobStatus.VALIDATING
    assert await harness.store.claims.claim_validating(runner) is None


async def test_preparing_is_fair_too(harness: StoreHarness) -> None:
    runner = await harness.runner()
    for owner in ("ann", "ann", "bob"):
        await harness.job(owner)
    owners = [claimed.job.owner for _ in range(3) if (claimed := await harness.store.claims.claim_validating(runner))]
    assert owners == ["ann", "bob", "ann"]


async def test_a_claim_takes_the_job_and_its_devices(harness: StoreHarness) -> None:
    claimed = await harness.running()
    assert claimed.job.status is JobStatus.RUNNING
    assert claimed.lease.attempt == 2  # the first prepared it
    assert claimed.devices == DEVICES[:1]
    assert claimed.lease_until == pytest.approx(await harness.store.now() + LEASE, abs=5)
    record = (await harness.store.jobs.attempts(claimed.job.id))[-1]
    assert (record.devices, record.ended_at, record.outcome) == (("cpu:0",), None, None)


async def test_a_lent_device_is_lent_to_no_other_runner_of_its_host(harness: StoreHarness) -> None:
    await harness.queued(devices=2)
    for _ in range(2):
        await harness.queued()
    first, second, elsewhere = await harness.runner(), await harness.runner(pid=2), await harness.runner("beta")
    held = await harness.store.claims.claim_queued(first, DEVICES)
    assert held is not None
    assert await harness.store.claims.claim_queued(second, DEVICES) is None
    assert await harness.store.claims.claim_queued(elsewhere, DEVICES[:1]) is not None
    await harness.store.attempts.report_cancelled(held.lease)
    assert await harness.store.claims.claim_queued(second, DEVICES) is not None


async def test_what_is_lent_is_known_by_host(harness: StoreHarness) -> None:
    assert await harness.store.claims.lent_devices("alpha") == {}
    claimed = await harness.running()
    assert await harness.store.claims.lent_devices("alpha") == {claimed.devices[0].name: claimed.lease}
    assert await harness.store.claims.lent_devices("beta") == {}


async def test_owners_take_turns(harness: StoreHarness) -> None:
    for owner in ("ann", "ann", "ann", "bob", "bob", "cem"):
        await harness.queued(owner)
    runner, served = await harness.runner(), []
    for _ in range(6):
        claimed = await harness.store.claims.claim_queued(runner, DEVICES)
        assert claimed is not None
        served.append(claimed.job.owner)
        await harness.store.attempts.report_cancelled(claimed.lease)
    assert served == ["ann", "bob", "cem", "ann", "bob", "ann"]


async def test_an_owner_has_a_limit(harness: StoreHarness) -> None:
    for owner in ("ann", "ann", "bob"):
        await harness.queued(owner)
    runner, devices = await harness.runner(), [RunnerDevice(name=str(n), kind=CPU) for n in range(8)]
    claims = [await harness.store.claims.claim_queued(runner, devices, max_per_owner=1) for _ in range(3)]
    assert [claimed.job.owner for claimed in claims if claimed] == ["ann", "bob"]


async def test_named_devices_and_other_kinds_are_respected(harness: StoreHarness) -> None:
    await harness.queued(name="cpu:1")
    runner = await harness.runner()
    assert await harness.store.claims.claim_queued(runner, [RunnerDevice(name="cpu:1", kind="cuda")]) is None
    assert await harness.store.claims.claim_queued(runner, DEVICES[:1]) is None
    claimed = await harness.store.claims.claim_queued(runner, DEVICES)
    assert claimed is not None
    assert claimed.devices == DEVICES[1:]


async def test_nothing_waits(harness: StoreHarness) -> None:
    runner = await harness.runner()
    assert await harness.store.claims.claim_queued(runner, DEVICES) is None
    assert await harness.store.claims.claim_validating(runner) is None


async def test_bad_claims_are_refused(store: Store, harness: StoreHarness) -> None:
    with pytest.raises(UnknownRunnerError, match="register"):
        await store.claims.claim_queued("runner-x", DEVICES)
    with pytest.raises(BadValueError, match="same name"):
        await store.claims.claim_queued(await harness.runner(), DEVICES + DEVICES)


async def test_waiting_phases_say_whether_jobs_wait(harness: StoreHarness) -> None:
    assert await harness.store.claims.waiting_phases() == frozenset()
    await harness.job()
    assert await harness.store.claims.waiting_phases() == {JobStatus.VALIDATING}
    claimed = await harness.store.claims.claim_validating(await harness.runner())
    assert claimed is not None
    assert await harness.store.claims.waiting_phases() == frozenset()  # a runner prepares it
    await harness.store.attempts.report_prepared(claimed.lease, [DeviceNeed(kind=CPU)], {})
    await harness.job()
    assert await harness.store.claims.waiting_phases() == {JobStatus.VALIDATING, JobStatus.QUEUED}


NO_SHARES = OwnerShares(busy={}, served={}, limit=None)


def waiting(owner: str, oldest: float = 0.0, *, devices: int = 1, since: float = 0.0) -> WaitingGroup:
    return WaitingGroup(owner=owner, needs=(DeviceNeed(kind=CPU),) * devices, key="", oldest=oldest, since=since)


def chosen(
    groups: list[WaitingGroup], owners: OwnerShares, free: tuple[RunnerDevice, ...] = DEVICES, now: float = 0.0
) -> str | None:
    choice = choose_next_job(groups, owners, DEVICES, free, now)
    return choice[0].owner if choice else None


def test_fewest_running_then_least_recently_served_then_oldest() -> None:
    groups = [waiting("ann", 1.0), waiting("bob", 2.0), waiting("cem", 3.0)]
    assert chosen(groups, NO_SHARES) == "ann"
    assert chosen(groups, OwnerShares(busy={}, served={"ann": 5.0, "cem": 4.0}, limit=None)) == "bob"
    assert chosen(groups, OwnerShares(busy={"ann": 1, "bob": 1}, served={"cem": 9.0}, limit=None)) == "cem"


def test_an_owner_at_the_limit_waits() -> None:
    owners = OwnerShares(busy={"ann": 1}, served={}, limit=1)
    assert chosen([waiting("ann")], owners) is None
    assert chosen([waiting("ann"), waiting("bob", 9.0)], owners) == "bob"


def test_small_jobs_overtake_a_large_one_only_until_it_has_waited_long() -> None:
    groups = [waiting("ann", devices=2), waiting("bob", 9.0, since=PATIENCE_SECONDS)]
    assert chosen(groups, NO_SHARES, DEVICES[:1]) == "bob"
    assert chosen(groups, NO_SHARES, DEVICES[:1], now=PATIENCE_SECONDS + 1) is None
    assert chosen(groups, NO_SHARES, DEVICES, now=PATIENCE_SECONDS + 1) == "ann"


def test_a_job_that_never_fits_here_delays_no_other() -> None:
    groups = [waiting("ann", devices=3), waiting("bob", 9.0)]
    assert chosen(groups, NO_SHARES, DEVICES[:1], now=PATIENCE_SECONDS * 9) == "bob"


def test_a_named_device_is_kept_for_the_need_that_names_it() -> None:
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

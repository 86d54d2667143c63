from hypothesis import given
from hypothesis import strategies as st

from onyx.jobs.turns import PATIENCE_SECONDS, Owners, Waiting, assign, choose
from onyx.jobs.values import DeviceNeed, RunnerDevice
from tests.jobs.world import CPU, DEVICES

NOBODY = Owners(busy={}, served={}, limit=None)


def waiting(owner: str, oldest: float = 0.0, *, devices: int = 1, since: float = 0.0) -> Waiting:
    return Waiting(owner=owner, needs=(DeviceNeed(kind=CPU),) * devices, key="", oldest=oldest, since=since)


def chosen(
    groups: list[Waiting], owners: Owners, free: tuple[RunnerDevice, ...] = DEVICES, now: float = 0.0
) -> str | None:
    choice = choose(groups, owners, DEVICES, free, now)
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
    assert assign(needs, DEVICES) == (DEVICES[1], DEVICES[0])
    assert assign((DeviceNeed(kind=CPU, name="cpu:7"),), DEVICES) is None
    assert assign((DeviceNeed(kind="cuda"),), DEVICES) is None
    assert assign((), ()) == ()


@given(st.lists(st.sampled_from("ab"), max_size=5), st.lists(st.sampled_from("ab"), max_size=5))
def test_an_assignment_uses_each_device_once_if_there_are_enough(kinds: list[str], have: list[str]) -> None:
    devices = [RunnerDevice(name=str(place), kind=kind) for place, kind in enumerate(have)]
    found = assign([DeviceNeed(kind=kind) for kind in kinds], devices)
    if found is None:
        assert any(kinds.count(kind) > have.count(kind) for kind in "ab")
    else:
        assert [device.kind for device in found] == kinds
        assert len({device.name for device in found}) == len(kinds)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.training.packing import order as order_module
from onyx.training.packing.order import Order, mix


def epoch(order: Order, number: int) -> list[int]:
    return [int(sample) for sample in order.samples(number, np.arange(order.count))]


@given(count=st.integers(1, 400), seed=st.integers(0, 2**31 - 1), number=st.integers(0, 50))
def test_an_epoch_has_each_sample_once(count: int, seed: int, number: int) -> None:
    assert sorted(epoch(Order(count=count, seed=seed), number)) == list(range(count))


@given(count=st.integers(1, 200), size=st.integers(1, 50), seed=st.integers(0, 100))
def test_windows_follow_the_epoch_and_end_with_it(count: int, size: int, seed: int) -> None:
    order = Order(count=count, seed=seed)
    position, seen = 0, []
    while position < 2 * count:
        window = order.window(position, size)
        assert 1 <= len(window) <= size
        seen.extend(window.tolist())
        position += len(window)
    assert seen == epoch(order, 0) + epoch(order, 1)


def test_the_order_never_changes() -> None:
    """These numbers must never change: a job that a newer Onyx resumes goes on in the same order."""
    assert epoch(Order(count=10, seed=0), 0) == [2, 4, 1, 0, 3, 9, 7, 6, 8, 5]
    assert epoch(Order(count=10, seed=0), 1) == [9, 3, 0, 6, 1, 5, 2, 8, 4, 7]
    assert mix(1, 2, 3) == 7702586659592502839


def test_epochs_and_seeds_differ() -> None:
    orders = [epoch(Order(count=50, seed=seed), number) for seed in range(3) for number in range(3)]
    assert len({tuple(order) for order in orders}) == 9


@pytest.mark.parametrize("count", [5, 37, 64])
def test_every_sample_comes_to_every_place(count: int) -> None:
    """Chi-square over 1000 epochs: each place sees each sample about as often."""
    epochs = 1000
    order = Order(count=count, seed=3)
    found = np.stack([order.samples(number, np.arange(count)) for number in range(epochs)])
    for place in (0, count // 2, count - 1):
        counts = np.bincount(found[:, place], minlength=count)
        chi = ((counts - epochs / count) ** 2 / (epochs / count)).sum()
        assert chi < count - 1 + 5 * (2 * (count - 1)) ** 0.5


def test_neighbours_do_not_stay_neighbours() -> None:
    order = epoch(Order(count=10_000, seed=1), 0)
    steps = np.abs(np.diff(order))
    assert abs(steps.mean() - 10_000 / 3) < 200


def test_ten_million_samples_cost_no_more_than_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the numbers that the network permutes: a few per sample of the window, at every position."""
    permuted: list[int] = []
    network = order_module._network

    def counted(values: order_module.Words, bits: int, keys: list[int]) -> order_module.Words:
        permuted.append(len(values))
        return network(values, bits, keys)

    monkeypatch.setattr(order_module, "_network", counted)
    order = Order(count=10_000_000, seed=0)
    for position in range(0, 9_999_000, 100_000):
        assert len(order.window(position, 32)) == 32
    assert sum(permuted) < 4 * 100 * 32
    assert max(permuted) == 32

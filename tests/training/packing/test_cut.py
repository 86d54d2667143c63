import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.training.packing.cut import longest_first, mean_length, micro_batches, shares

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=80)
PARTS = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5)


@given(lengths=LENGTHS, parts=PARTS)
def test_each_sample_is_in_one_share_once_and_longest_first(lengths: list[int], parts: list[float]) -> None:
    window = np.random.default_rng(0).permutation(len(lengths))
    found = shares(window, np.array(lengths), parts, 500)
    assert len(found) == len(parts)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    for share in found:
        of_share = np.array(lengths)[share]
        assert (np.diff(of_share) <= 0).all()


@given(lengths=LENGTHS, parts=PARTS)
def test_shares_are_in_proportion_up_to_a_sample(lengths: list[int], parts: list[float]) -> None:
    """With a budget of 1 nothing is padded, and padded tokens are tokens."""
    window = np.arange(len(lengths))
    for share, part in zip(shares(window, np.array(lengths), parts, 1), parts, strict=True):
        fair = sum(lengths) * part / sum(parts)
        assert abs(sum(lengths[sample] for sample in share.tolist()) - fair) <= max(lengths) + 1e-6


def test_two_ranks_have_half_of_the_work_each() -> None:
    """In padded tokens, which is what a rank computes."""
    lengths = np.clip(np.random.default_rng(0).lognormal(4.3, 0.8, size=2048), 8, 512).astype(np.int64)
    alone = slowest = 0
    for start in range(0, 2048, 32):
        window = np.arange(start, start + 32)
        work = [
            sum(len(chosen) * int(lengths[chosen[0]]) for chosen in micro_batches(share, lengths, 1024))
            for share in [longest_first(window, lengths), *shares(window, lengths, [0.5, 0.5], 1024)]
        ]
        alone += work[0]
        slowest += max(work[1:])
    assert alone / slowest > 1.9


@given(lengths=LENGTHS, budget=st.integers(1, 2000))
def test_micro_batches_keep_to_the_budget(lengths: list[int], budget: int) -> None:
    share = longest_first(np.arange(len(lengths)), np.array(lengths))
    cut = micro_batches(share, np.array(lengths), budget)
    assert np.concatenate(cut).tolist() == share.tolist()
    for chosen in cut:
        padded = len(chosen) * max(lengths[sample] for sample in chosen)
        assert padded <= budget or len(chosen) == 1
    first = [lengths[chosen[0]] for chosen in cut]
    assert first == sorted(first, reverse=True)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9), budget=st.integers(1, 200), cost=st.integers(1, 90)
)
def test_no_other_cut_is_quicker(lengths: list[int], budget: int, cost: int) -> None:
    share = longest_first(np.arange(len(lengths)), np.array(lengths))
    widths: list[int] = [lengths[sample] for sample in share.tolist()]

    def quickest(start: int) -> int:
        """Tries all cuts."""
        if start == len(widths):
            return 0
        most = max(1, budget // widths[start])
        sizes = range(1, min(most, len(widths) - start) + 1)
        return min(cost + size * widths[start] + quickest(start + size) for size in sizes)

    cut = micro_batches(share, np.array(lengths), budget, cost)
    assert np.concatenate(cut).tolist() == share.tolist()
    assert all(len(chosen) * lengths[chosen[0]] <= budget or len(chosen) == 1 for chosen in cut)
    assert sum(cost + len(chosen) * lengths[chosen[0]] for chosen in cut) == quickest(0)


def test_a_large_budget_does_not_pad_the_short_to_the_longest() -> None:
    lengths = np.array([200, 190, 10, 10, 10, 10])
    assert [len(chosen) for chosen in micro_batches(np.arange(6), lengths, 10_000, 64)] == [2, 4]


@given(lengths=LENGTHS, parts=PARTS, budget=st.integers(1, 2000))
def test_the_same_window_is_always_cut_the_same(lengths: list[int], parts: list[float], budget: int) -> None:
    array = np.array(lengths)
    one, two = (shares(np.arange(len(lengths)), array, parts, 500) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert a.tolist() == b.tolist()
        cuts = [[chosen.tolist() for chosen in micro_batches(share, array, budget)] for share in (a, b)]
        assert cuts[0] == cuts[1]


def test_more_ranks_than_samples_leaves_some_with_nothing() -> None:
    found = shares(np.array([0]), np.array([7]), [0.5, 0.5, 0.5], 100)
    assert [len(share) for share in found] == [0, 1, 0]
    assert micro_batches(found[0], np.array([7]), 10) == []


def test_unequal_parts() -> None:
    found = shares(np.arange(40), np.full(40, 10), [0.75, 0.25], 100)
    assert [len(share) for share in found] == [30, 10]


@pytest.mark.parametrize(("budget", "sizes"), [(100, [1, 2, 3]), (60, [1, 1, 1, 2, 1]), (1, [1] * 6)])
def test_an_example(budget: int, sizes: list[int]) -> None:
    lengths = np.array([70, 50, 40, 30, 30, 20])
    assert [len(chosen) for chosen in micro_batches(np.arange(6), lengths, budget)] == sizes


@given(lengths=LENGTHS, budget=st.integers(1, 2000))
def test_joined_samples_fill_as_few_micro_batches_as_they_can(lengths: list[int], budget: int) -> None:
    widths = np.array(lengths)
    share = longest_first(np.arange(len(lengths)), widths)
    cut = micro_batches(share, widths, budget, joined=True)
    assert np.concatenate(cut).tolist() == share.tolist()
    for chosen, following in zip(cut, [*cut[1:], None], strict=True):
        tokens = int(widths[chosen].sum())
        assert tokens <= budget or len(chosen) == 1
        assert following is None or tokens + widths[following[0]] > budget
    assert micro_batches(share[:0], widths, budget, joined=True) == []


@given(lengths=LENGTHS, parts=PARTS)
def test_joined_samples_are_distributed_in_proportion_up_to_a_sample(lengths: list[int], parts: list[float]) -> None:
    widths = np.array(lengths)
    found = shares(np.random.default_rng(0).permutation(len(lengths)), widths, parts, 500, joined=True)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    for share, part in zip(found, parts, strict=True):
        assert (np.diff(widths[share]) <= 0).all()
        assert widths[share].sum() <= widths.sum() * part / sum(parts) + max(lengths)


def test_two_ranks_have_half_of_the_joined_work_each_long_and_short() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(4.3, 0.8, size=2048), 8, 512).astype(np.int64)
    tokens = squares = 0.0
    for start in range(0, 2048, 32):
        halves = shares(np.arange(start, start + 32), lengths, [0.5, 0.5], 1024, joined=True)
        tokens += max(lengths[half].sum() for half in halves)
        squares += max((lengths[half] ** 2).sum() for half in halves)
    assert lengths.sum() / tokens > 1.98
    assert (lengths**2).sum() / squares > 1.8  # the cost of attention


@pytest.mark.parametrize(("lengths", "mean"), [([4], 4), ([4, 3], 4), ([9, 1, 1, 1], 3)])
def test_mean_length_is_rounded_up(lengths: list[int], mean: int) -> None:
    assert mean_length(np.array(lengths)) == mean

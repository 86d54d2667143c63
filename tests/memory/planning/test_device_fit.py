from hypothesis import given
from hypothesis import strategies as st

from onyx.memory.planning.device_fit import split


@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 1e12), min_size=1, max_size=16))
def test_shares_sum_to_the_window_and_are_within_one_of_exact(window: int, weights: list[float]) -> None:
    shares = split(window, weights)
    assert sum(shares) == window
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - window * weight / sum(weights)) < 1 + 1e-6


def test_twice_the_weight_twice_the_share() -> None:
    assert split(30, [1.0, 2.0]) == [10, 20]
    assert split(7, [1.0, 1.0]) == [4, 3]
    assert split(1, [1.0, 5.0]) == [0, 1]

"""The evaluation split is a pure function."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onyx.training.data.split import held_out


@given(samples=st.integers(1, 500), fraction=st.floats(0, 0.999), seed=st.integers(0, 2**31 - 1))
def test_the_right_number_is_held_out(samples: int, fraction: float, seed: int) -> None:
    chosen = held_out(samples, fraction, seed)
    assert len(chosen) == samples
    assert (chosen == held_out(samples, fraction, seed)).all()
    if fraction == 0 or samples == 1:
        assert not chosen.any()
    else:
        assert 1 <= chosen.sum() < samples
        assert abs(int(chosen.sum()) - samples * fraction) <= 1


def test_seeds_differ_and_the_choice_is_spread() -> None:
    first, second = held_out(10_000, 0.1, 0), held_out(10_000, 0.1, 1)
    assert (first & second).sum() < 200
    halves = first.reshape(10, 1000).sum(1)
    assert halves.min() > 60
    assert halves.max() < 140


def test_these_samples_and_no_others() -> None:
    # A change of the function would move samples between training and evaluation of jobs that exist.
    assert np.flatnonzero(held_out(20, 0.2, 7)).tolist() == [0, 5, 12, 15]


def test_appending_moves_few() -> None:
    before, after = held_out(1000, 0.1, 3), held_out(1010, 0.1, 3)
    assert (before != after[:1000]).sum() <= 4

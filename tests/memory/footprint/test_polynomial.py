import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.memory.footprint.footprint import EXPONENTS
from onyx.memory.footprint.polynomial import deeper, live_rows, parts, peaks, primes

B, S = 1009, 251

terms = st.tuples(st.integers(1, 10**6), st.sampled_from(EXPONENTS)).filter(lambda t: t[0] % B and t[0] % S)


@given(st.lists(terms, min_size=1, max_size=20))
def test_an_allocation_says_how_it_grows(given_terms: list[tuple[int, tuple[int, int]]]) -> None:
    log = [number * B**b * S**s for number, (b, s) in given_terms]
    rows = live_rows(log, B, S)
    for samples, length in ((1, 1), (3, 100), (8, 64)):
        basis = [samples**b * length**s for b, s in EXPONENTS]
        assert rows[-1] @ basis == sum(n * samples**b * length**s for n, (b, s) in given_terms)


@given(st.sets(st.integers(1, 60_000), max_size=30), st.integers(50, 2000))
def test_primes_divide_no_size_of_the_model(sizes: set[int], most: int) -> None:
    samples, length = primes(sizes, most)
    assert length <= most
    assert samples != length
    assert all(size % samples and size % length for size in sizes if size > 1)


def test_no_length_that_could_be_told_apart() -> None:
    with pytest.raises(ValueError, match="no length from 1 to 3"):
        primes({2, 3}, 3)


def test_depths_extrapolate_part_by_part() -> None:
    def model(depth: int) -> dict[str, np.ndarray]:
        rows = np.array([[100.0 * depth, 0, 0, 7 * depth + 2, 0, 0], [5, 0, 0, depth, 0, 0]])
        return {"0 head": rows, **{f"0 forward block {i}": rows + i for i in range(depth)}}

    known = deeper(model(1), model(2), (1, 2), 12)
    assert known["0 head"].tolist() == model(12)["0 head"].tolist()
    assert known["0 forward last"].tolist() == model(12)["0 forward block 11"].tolist()
    assert known["0 forward first"].tolist() == model(12)["0 forward block 0"].tolist()


def test_parts_of_unequal_length_are_bounded_from_above() -> None:
    short, long = np.ones((2, 6)), np.full((4, 6), 2.0)
    assert deeper({"update": short}, {"update": long}, (1, 2), 3)["update"].tolist() == [[3.0] * 6]


def test_a_part_begins_with_what_was_alive() -> None:
    rows = live_rows([10, 20, -10, 5], B, S)
    found = parts(rows, [(0, "0 a"), (2, "1 b")])
    assert found["0 a"][:, 0].tolist() == [10, 30]
    assert found["1 b"][:, 0].tolist() == [30, 20, 25]


def test_only_rows_that_can_be_a_peak_are_kept() -> None:
    rows = np.array([[1.0, 0, 0, 5, 0, 0], [1, 0, 0, 4, 0, 0], [9, 0, 0, 1, 0, 0]])
    found = peaks({"0 a": rows, "1 b": rows[:1]})
    assert set(found.single) == {(1, 0, 0, 5, 0, 0), (9, 0, 0, 1, 0, 0)}
    assert found.further == ((1, 0, 0, 5, 0, 0),)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.memory.footprint.footprint import Footprint, Peaks, Static

STATIC = Static(weights=100, buffers=10, gradients=100, optimizer=200)


def footprint(*rows: tuple[int, ...]) -> Footprint:
    peaks = Peaks(single=rows, further=((50, 0, 0, 1, 0, 0),))
    one = Peaks(single=((0, 0, 9, 0, 0, 0),), further=((50, 0, 9, 0, 0, 0),))
    return Footprint(static=STATIC, many=peaks, one=one, error=0.0)


def test_the_peak_is_the_largest_of_its_points() -> None:
    found = footprint((0, 0, 0, 2, 0, 0), (1000, 0, 0, 1, 0, 0))
    assert found.peak(2, 10) == 310 + 1020
    assert found.peak(1000, 10) == 310 + 20_000
    assert found.peak(1, 10) == 310 + 140
    assert found.peak(1, 10, accumulate=False) == 310 + 90


rows = st.tuples(*[st.integers(0, 1000)] * 6).filter(lambda row: row[1] + row[3] + row[5] > 0)


@given(rows, st.integers(400, 10**9), st.integers(1, 500))
def test_the_largest_batch_fits_and_the_next_does_not(row: tuple[int, ...], size: int, length: int) -> None:
    found = footprint(row)
    most = int(found.most_samples(size, length))
    if most >= 1:
        assert found.peak(most, length) <= size
    if most < 2**20:
        assert found.peak(max(most, 1) + 1 if most else 1, length) > size


def test_json_goes_there_and_back() -> None:
    found = footprint((0, 0, 0, 2, 0, 0))
    assert Footprint.from_json(found.to_json()) == found


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"static": 3}', "null", '"x"'])
def test_what_is_not_a_footprint(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a stored footprint|Expecting"):
        Footprint.from_json(text)


def test_a_footprint_without_rows_is_none() -> None:
    text = footprint((0, 0, 0, 2, 0, 0)).to_json().replace('"single":[[0,0,0,2,0,0]]', '"single":[]')
    with pytest.raises(ValueError, match="no rows"):
        Footprint.from_json(text)

import math
from typing import Any

import pytest

from onyx.accumulation import check


@pytest.mark.parametrize("value", [0, -1, 1.0, math.nan, "1", None, True])
def test_whole_refuses(value: Any) -> None:
    with pytest.raises(ValueError, match=r"n must be >= 1, got .*: give a whole number"):
        check.whole("n", value)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "1", None, True])
def test_positive_refuses(value: Any) -> None:
    with pytest.raises(ValueError, match="x must be > 0 and finite, got"):
        check.positive("x", value)


@pytest.mark.parametrize("value", [0, 1, -0.5, 1.5, math.nan, "0.5", None, True])
def test_fraction_refuses(value: Any) -> None:
    with pytest.raises(ValueError, match="f must be between 0 and 1"):
        check.fraction("f", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, True])
def test_number_refuses(value: Any) -> None:
    with pytest.raises(ValueError, match="y must be finite"):
        check.number("y", value)


def test_a_valid_value_is_returned() -> None:
    assert check.whole("n", 3) == 3
    assert check.whole("n", 0, at_least=0) == 0
    assert check.number("y", -2) == -2.0
    assert check.number("y", 0, at_least=0) == 0.0
    assert check.fraction("f", 0.5) == 0.5
    assert check.flag("b", False) is False
    assert check.one_of("s", "a", ["a", "b"]) == "a"


def test_flags_and_names_refuse() -> None:
    with pytest.raises(ValueError, match="b must be True or False, got 1"):
        check.flag("b", 1)
    with pytest.raises(ValueError, match="s must be one of a, b; got 'c'"):
        check.one_of("s", "c", ["a", "b"])

import math
from typing import Any

import pytest

from onyx.server.features.ads.gradient_accumulation import (
    adjust_learning_rate,
    calculate_accumulation_steps,
    calculate_effective_batch_size,
)


def test_the_documented_numbers() -> None:
    assert calculate_effective_batch_size(8, 4) == 32
    assert calculate_accumulation_steps(32, 8) == 4
    assert calculate_accumulation_steps(33, 8) == 5
    assert adjust_learning_rate(0.001, 4) == 0.00025


def test_rules() -> None:
    assert adjust_learning_rate(0.1, 4, rule="linear") == pytest.approx(0.4)
    assert adjust_learning_rate(0.1, 4, rule="sqrt") == pytest.approx(0.2)
    assert adjust_learning_rate(0.1, 4, rule="none") == 0.1


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, "8", None])
def test_invalid_numbers_are_refused(bad: Any) -> None:
    for call in (
        lambda: calculate_effective_batch_size(bad, 4),
        lambda: calculate_effective_batch_size(8, bad),
        lambda: calculate_accumulation_steps(bad, 8),
        lambda: calculate_accumulation_steps(32, bad),
        lambda: adjust_learning_rate(bad, 4),
        lambda: adjust_learning_rate(0.1, bad),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
    with pytest.raises(ValueError, match="rule must be one of inverse, linear, sqrt, none"):
        adjust_learning_rate(0.1, 4, rule=bad)

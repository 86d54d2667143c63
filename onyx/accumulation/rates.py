"""Document 002's formulas for batch sizes, accumulation steps and learning rates."""

import math
from collections.abc import Callable
from typing import Literal

from onyx.accumulation import check

Rule = Literal["inverse", "linear", "sqrt", "none"]

_RULES: dict[str, Callable[[float, int], float]] = {
    "inverse": lambda rate, steps: rate / steps,
    "linear": lambda rate, steps: rate * steps,
    "sqrt": lambda rate, steps: rate * math.sqrt(steps),
    "none": lambda rate, steps: rate,
}


def calculate_effective_batch_size(actual: int, steps: int) -> int:
    """Samples of a window of `steps` micro-batches with `actual` samples each."""
    return check.whole("actual batch size", actual) * check.whole("accumulation steps", steps)


def calculate_accumulation_steps(target: int, actual: int) -> int:
    """How many micro-batches of `actual` samples reach `target`, rounded up."""
    return -(-check.whole("target batch size", target) // check.whole("actual batch size", actual))


def adjust_learning_rate(base_lr: float, steps: int, *, rule: Rule = "inverse") -> float:
    """The learning rate for windows of `steps` micro-batches.

    "inverse" is the document's formula; on top of the averaged gradient that Onyx computes it slows training N-fold.
    "linear" (SGD) and "sqrt" (Adam) are the usual rules of the literature; "none" keeps the rate.
    """
    check.positive("base_lr", base_lr)
    check.whole("accumulation steps", steps)
    return _RULES[check.one_of("rule", rule, _RULES)](base_lr, steps)

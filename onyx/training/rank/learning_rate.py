"""The learning rate, as a pure function of the samples done.

Schedules count samples and not steps: so neither accumulation nor a skipped update bends the curve.
"""

import math
from collections.abc import Callable

from onyx.training.contract.spec import TrainingSpec

SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
"""What is left of the rate when this part of the decay is done."""


def learning_rate(spec: TrainingSpec, peak: float, *, position: int, size: int, total: int) -> float:
    """The rate for a window of `size` samples that begins after `position` of `total`.

    Warm-up looks at the window's end and decay at its beginning: so no update is lost to a rate of 0.
    """
    warmup = spec.warmup_fraction * total
    risen = min(1.0, (position + size) / warmup) if warmup else 1.0
    decayed = min(1.0, max(0.0, position - warmup) / (total - warmup))
    return peak * risen * SHAPES[spec.schedule](decayed)

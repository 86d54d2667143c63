"""The optimizer that a job asks for, and its learning rate."""

import math
from collections.abc import Callable

from torch import nn
from torch.optim import AdamW

from onyx.recipe.optimizer import make_optimizer
from onyx.training.contract.spec import TrainingSpec


def optimizer_for(model: nn.Module, spec: TrainingSpec) -> AdamW:
    """AdamW over the trained parameters of `model`, with the job's settings."""
    return make_optimizer(
        model.parameters(),
        learning_rate=spec.learning_rate,
        weight_decay=spec.weight_decay,
        betas=(spec.beta1, spec.beta2),
        epsilon=spec.epsilon,
    )


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
"""The factor on the peak rate when this fraction of the decay is done."""


def learning_rate(spec: TrainingSpec, peak: float, *, position: int, size: int, total: int) -> float:
    """The rate for a window of `size` samples that begins after `position` of `total` samples.

    A pure function of the samples done. Schedules count samples, not steps, so neither accumulation nor a skipped
    update changes the curve. Warm-up looks at the window's end and decay at its beginning: no update has a rate of 0.
    """
    warmup = spec.warmup_fraction * total
    risen = min(1.0, (position + size) / warmup) if warmup else 1.0
    decayed = min(1.0, max(0.0, position - warmup) / (total - warmup))
    return peak * risen * SCHEDULES[spec.schedule](decayed)

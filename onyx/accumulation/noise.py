"""The gradient noise scale: how large a batch still pays (arXiv 1812.06162).

A window of n micro-batches shows the gradient at two batch sizes at once: each micro-batch's own, and their mean's.
From the two squared norms follow the true gradient's and the noise's, and from their ratio the batch size, counted
in micro-batches, at which noise and signal are equal.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from onyx.accumulation import check
from onyx.accumulation.lazy_scalar import Number, read, settle

EXPLORE_EVERY = 8
"""A window of one micro-batch shows one batch size only, so at N = 1 every eighth window is two long."""


class NoiseScale:
    """Smoothed estimate of the noise scale, in micro-batches."""

    def __init__(self, smoothing: float = 0.9) -> None:
        self._smoothing = check.fraction("smoothing", smoothing)
        self.squared = 0.0
        self.variance = 0.0
        self.windows = 0

    def observe(self, count: int, small: float, big: float) -> None:
        """Take in a window of `count` micro-batches: mean squared norm of theirs, squared norm of their mean."""
        if count < 2 or not math.isfinite(small) or not math.isfinite(big):
            return
        squared = (count * big - small) / (count - 1)
        variance = (small - big) * count / (count - 1)
        self.squared = self._smoothing * self.squared + (1 - self._smoothing) * squared
        self.variance = self._smoothing * self.variance + (1 - self._smoothing) * variance
        self.windows += 1

    @property
    def value(self) -> float | None:
        """Micro-batches at which noise equals signal; None before the first window. Both averages start at 0, and
        that cancels in their ratio."""
        if not self.windows:
            return None
        return math.inf if self.squared <= 0 else max(self.variance, 0.0) / self.squared

    def state_dict(self) -> dict[str, float]:
        return {"squared": self.squared, "variance": self.variance, "windows": self.windows}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.squared = check.number("squared", state["squared"])
        self.variance = check.number("variance", state["variance"])
        self.windows = check.whole("windows", state["windows"], at_least=0)


@dataclass
class Adaptive:
    """A schedule: N follows the noise scale between 1 and `most`, starting from `start`."""

    noise: NoiseScale
    start: int
    most: int

    def length(self, update: int) -> int:
        value = self.noise.value
        if value is None:
            return max(2, min(self.start, self.most)) if self.most > 1 else 1
        steps = self.most if value > self.most else max(1, round(value))
        if steps == 1 and self.most > 1 and update % EXPLORE_EVERY == 0:
            return 2
        return steps


class MicroNorms:
    """Squared norm of each micro-batch's own gradient, seen as it arrives at `.grad`: no copy is kept."""

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._arriving: dict[torch.device, Tensor] = {}
        self._sum: Number = 0.0
        self.count = 0
        self._hooks: list[RemovableHandle] = [p.register_hook(self._see) for p in parameters if p.requires_grad]

    def _see(self, gradient: Tensor) -> None:
        squared = gradient.detach().float().pow(2).sum()
        seen = self._arriving.get(gradient.device)
        self._arriving[gradient.device] = squared if seen is None else seen + squared

    def end_micro_batch(self, factor: Number) -> None:
        """Count what has arrived. `factor` is what the micro-batch's own gradient was multiplied by."""
        for squared in self._arriving.values():
            self._sum = self._sum + settle(squared / (factor * factor))
        self._arriving.clear()
        self.count += 1

    def take(self) -> tuple[int, float]:
        """How many micro-batches, and the mean of their squared norms. Starts anew."""
        count, mean = self.count, read(self._sum) / max(self.count, 1)
        self._sum, self.count = 0.0, 0
        self._arriving.clear()
        return count, mean

    def state_dict(self) -> dict[str, Number]:
        """Of a window that is open."""
        return {"sum": self._sum, "count": self.count}

    def load_state_dict(self, state: dict[str, Number]) -> None:
        self.count = check.whole("count", state["count"], at_least=0)
        self._sum = settle(state["sum"])
        self._arriving.clear()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

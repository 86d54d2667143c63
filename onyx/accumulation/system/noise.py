"""The gradient noise scale: up to which size a larger batch still speeds up training (arXiv 1812.06162).

A window of n micro-batches gives the gradient at two batch sizes: that of each micro-batch, and their mean. From the
squared norms of both follow the squared norm of the true gradient and the variance of the noise. Their ratio is the
batch size, in micro-batches, at which noise and signal are equal.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from onyx.accumulation import check
from onyx.accumulation.boundary import parameters_of
from onyx.accumulation.ddp import DdpPeers
from onyx.accumulation.lazy_scalar import Number, read, settle
from onyx.accumulation.window import Window

EXPLORE_EVERY = 8
"""A window of one micro-batch gives one batch size only, so at N = 1 every eighth window has two."""


class NoiseScale:
    """A smoothed estimate of the noise scale, in micro-batches."""

    def __init__(self, smoothing: float = 0.9) -> None:
        self._smoothing = check.fraction("smoothing", smoothing)
        self.squared = 0.0
        self.variance = 0.0
        self.windows = 0

    def observe(self, count: int, small: float, big: float) -> None:
        """Add a window of `count` micro-batches: mean of their squared norms, and squared norm of their mean."""
        if count < 2 or not math.isfinite(small) or not math.isfinite(big):
            return
        squared = (count * big - small) / (count - 1)
        variance = (small - big) * count / (count - 1)
        self.squared = self._smoothing * self.squared + (1 - self._smoothing) * squared
        self.variance = self._smoothing * self.variance + (1 - self._smoothing) * variance
        self.windows += 1

    @property
    def value(self) -> float | None:
        """Micro-batches at which noise equals signal; None before the first window.

        Both averages start at 0; the bias of that cancels in their ratio.
        """
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
    """Squared norm of the gradient of each micro-batch, measured by hooks before `.grad` adds it: no copy is kept."""

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._arriving: dict[torch.device, Tensor] = {}
        self._sum: Number = 0.0
        self.count = 0
        self._hooks: list[RemovableHandle] = [p.register_hook(self._measure) for p in parameters if p.requires_grad]

    def _measure(self, gradient: Tensor) -> None:
        squared = gradient.detach().float().pow(2).sum()
        before = self._arriving.get(gradient.device)
        self._arriving[gradient.device] = squared if before is None else before + squared

    def end_micro_batch(self, factor: Number) -> None:
        """Add the norm of a micro-batch whose gradient was multiplied by `factor`."""
        for squared in self._arriving.values():
            self._sum = self._sum + settle(squared / (factor * factor))
        self._arriving.clear()
        self.count += 1

    def take(self) -> tuple[int, float]:
        """The number of micro-batches and the mean of their squared norms. Resets both."""
        count, mean = self.count, read(self._sum) / max(self.count, 1)
        self._sum, self.count = 0.0, 0
        self._arriving.clear()
        return count, mean

    def state_dict(self) -> dict[str, Number]:
        """Count and sum of an open window."""
        return {"sum": self._sum, "count": self.count}

    def load_state_dict(self, state: dict[str, Number]) -> None:
        self.count = check.whole("count", state["count"], at_least=0)
        self._sum = settle(state["sum"])
        self._arriving.clear()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


class NoiseMeter:
    """Measures the noise of windows: the norms of micro-batches, and of their mean before a strategy changes it."""

    def __init__(self, optimizer: Optimizer, noise: NoiseScale, peers: DdpPeers | None = None) -> None:
        self._noise = noise
        self._peers = peers
        self._small = MicroNorms(parameters_of(optimizer))
        self._weights: list[Number] = []
        self._big: Number = 0.0

    def count_micro_batch(self, window: Window, weight: Number | None, *, scale: float) -> None:
        """Count the micro-batch that `window` has just taken. `scale` is the loss scale."""
        unit = 1.0 if weight is None else weight
        ranks = 1.0 if weight is None or self._peers is None else float(self._peers.size)
        assert window.divisor is not None  # noqa: S101 - set by the first micro-batch
        self._small.end_micro_batch(unit * ranks * scale / window.divisor)
        self._weights.append(unit)

    def reshape(self, optimizer: Optimizer) -> None:
        """Measure the gradient. This is the first strategy of a window and changes nothing."""
        gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        self._big = get_total_norm(gradients)

    def end_window(self, *, summed: bool) -> None:
        """Add the window to the estimate. `summed`: its gradient is a sum, not divided by its weight."""
        count, small = self._small.take()
        weights = [read(weight) for weight in self._weights]
        self._weights.clear()
        if count < 2 or min(weights) <= 0:
            return
        big = (read(self._big) / (sum(weights) if summed else 1.0)) ** 2
        self._noise.observe(count, self._as_if_cut_evenly(small, big, weights), big)

    def _as_if_cut_evenly(self, small: float, big: float, weights: list[float]) -> float:
        """The mean squared norm of micro-batches if this window had been cut evenly, one micro-batch per rank at once.

        A gradient over w samples has the squared norm `squared + variance / w`: two norms give both unknowns.
        """
        ranks = 1 if self._peers is None else self._peers.size
        small = small if self._peers is None else read(self._peers.total(small)) / ranks
        total = sum(weights) * ranks
        variance = (small - big) / (sum(1 / weight for weight in weights) / len(weights) - 1 / total)
        squared = big - variance / total
        return squared + variance * len(weights) / total

    def state_dict(self) -> dict[str, Any]:
        """Norms and weights of an open window."""
        return {"norms": self._small.state_dict(), "weights": list(self._weights)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue an open window."""
        self._small.load_state_dict(saved["norms"])
        self._weights = list(saved["weights"])

    def drop_window(self) -> None:
        """Drop the norms of an open window."""
        self._small.take()
        self._weights.clear()

    def remove(self) -> None:
        """Remove the hooks from the parameters."""
        self._small.remove()

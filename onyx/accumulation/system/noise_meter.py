"""Watches the gradients of windows and keeps the noise scale up to date."""

from collections.abc import Mapping
from typing import Any

from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from onyx.accumulation.boundary import parameters_of
from onyx.accumulation.ddp import DdpPeers
from onyx.accumulation.lazy_scalar import Number, read
from onyx.accumulation.noise import MicroNorms, NoiseScale
from onyx.accumulation.window import Window


class NoiseMeter:
    """Norms of the micro-batches as they arrive, and of their mean before any strategy reshapes it."""

    def __init__(self, optimizer: Optimizer, noise: NoiseScale, peers: DdpPeers | None = None) -> None:
        self._noise = noise
        self._peers = peers
        self._small = MicroNorms(parameters_of(optimizer))
        self._weights: list[Number] = []
        self._big: Number = 0.0

    def see(self, window: Window, weight: Number | None, *, scale: float) -> None:
        """Count the micro-batch that `window` has just taken. `scale` is that of the loss."""
        unit = 1.0 if weight is None else weight
        ranks = 1.0 if weight is None or self._peers is None else float(self._peers.size)
        assert window.divisor is not None  # noqa: S101 - it has taken a micro-batch
        self._small.end_micro_batch(unit * ranks * scale / window.divisor)
        self._weights.append(unit)

    def reshape(self, optimizer: Optimizer) -> None:
        """The first of a window's strategies: changes nothing, measures."""
        gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        self._big = get_total_norm(gradients)

    def end_window(self, *, summed: bool) -> None:
        """Take the window in. `summed`: its gradient is not divided by its weight."""
        count, small = self._small.take()
        weights = [read(weight) for weight in self._weights]
        self._weights.clear()
        if count < 2 or min(weights) <= 0:
            return
        big = (read(self._big) / (sum(weights) if summed else 1.0)) ** 2
        self._noise.observe(count, self._evened(small, big, weights), big)

    def _evened(self, small: float, big: float, weights: list[float]) -> float:
        """The mean squared norm that this window would have shown cut evenly, each piece one per rank at once.

        A gradient over w samples has the squared norm `squared + variance / w`: two norms give both.
        """
        ranks = 1 if self._peers is None else self._peers.size
        small = small if self._peers is None else read(self._peers.total(small)) / ranks
        total = sum(weights) * ranks
        variance = (small - big) / (sum(1 / weight for weight in weights) / len(weights) - 1 / total)
        squared = big - variance / total
        return squared + variance * len(weights) / total

    def state_dict(self) -> dict[str, Any]:
        """What an open window has shown so far."""
        return {"norms": self._small.state_dict(), "weights": list(self._weights)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on within an open window."""
        self._small.load_state_dict(saved["norms"])
        self._weights = list(saved["weights"])

    def drop_window(self) -> None:
        """Forget what has arrived."""
        self._small.take()
        self._weights.clear()

    def remove(self) -> None:
        """Let go of the parameters."""
        self._small.remove()

"""A window: the micro-batches of one update. This is the one place that divides losses.

Every micro-batch contributes `sum of its losses / W`, where W is the weight (label tokens or samples) of the whole
window over all ranks. So the gradient is that of one big batch, however the window is cut. Where W is known only at
the end of the window, a provisional divisor takes its place, and the gradients are multiplied by `correction` once.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from onyx.accumulation import check
from onyx.accumulation.lazy_scalar import Number, read, settle


class Peers(Protocol):
    """The ranks that share a window and average their gradients."""

    size: int

    def total(self, value: Number) -> Number:
        """The sum of `value` over all ranks."""
        ...


@dataclass(kw_only=True)
class Window:
    """What an open window has taken so far. Its gradients are in `.grad` only."""

    length: int
    """Micro-batches it will take. Fixed when the window opens."""

    weight: Number | None = None
    """W of the whole window over all ranks, where it is known before the first forward."""

    peers: Peers | None = None
    """The ranks over which DDP averages the gradients; None for one rank, or where gradients are summed."""

    count: int = 0
    """Micro-batches taken."""

    taken: Number = 0.0
    """Weight taken so far, on this rank."""

    losses: Number = 0.0
    """Sum of the losses as they were given."""

    divisor: Number | None = None
    """What every contribution is divided by: W or the provisional divisor. None before the first."""

    weighted: bool | None = None
    """Whether this window's micro-batches come with weights. None before the first."""

    unsynced: bool = False
    """Whether the last backward exchanged nothing, so that the ranks must exchange before the update."""

    def __post_init__(self) -> None:
        check.whole("the length of a window", self.length)
        if self.divisor is None:
            self.divisor = self.weight

    @property
    def full(self) -> bool:
        return self.count >= self.length

    @property
    def next_is_last(self) -> bool:
        """Whether the next micro-batch fills the window."""
        return self.count + 1 >= self.length

    def take(self, loss: Tensor, weight: Number | None = None, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
        """Count a micro-batch and return its contribution: run backward on that.

        `loss` is the mean over `weight` tokens or samples (without a weight: one unit), or with
        `reduction="sum"` their sum.
        """
        loss, unit = self._count(loss, weight)
        if self.divisor is None:
            self.divisor = self._provisional(unit)
        # A weighted window sums over ranks, but DDP averages: multiply by their number. Without weights every
        # micro-batch counts alike on every rank, and the average is right.
        ranks = self.peers.size if self.peers and self.weighted else 1
        factor = (1.0 if reduction == "sum" else unit) * ranks / self.divisor
        # No multiplication at N = 1, so that plain training keeps its bits and its speed.
        return loss if not isinstance(factor, Tensor) and factor == 1.0 else loss * factor

    def take_undivided(self, loss: Tensor, weight: Number | None = None) -> None:
        """Count a micro-batch for which the caller has run backward on the undivided loss."""
        if self.count and self.divisor != 1.0:
            raise ValueError(
                "this window's gradients are divided already: run backward for all its micro-batches or for none"
            )
        self._count(loss, weight)
        self.divisor = 1.0

    def correction(self) -> float | None:
        """The factor that the gradients still lack; None if the weight of the window is 0.

        It reads the weight, so the host waits for the device here.
        """
        if self.weight is not None:
            return 1.0 if read(self.weight) > 0 else None
        total = read(self.peers.total(self.taken) if self.peers and self.weighted else self.taken)
        return read(self.divisor) / total if self.divisor is not None and total > 0 else None

    def _count(self, loss: Tensor, weight: Number | None) -> tuple[Tensor, Number]:
        if loss.numel() != 1:
            raise ValueError(f"loss must be one number, got a tensor of shape {tuple(loss.shape)}")
        unit = 1.0 if weight is None else _checked_weight(weight)
        if self.weighted not in (None, weight is not None):
            raise ValueError("all micro-batches of a window come with a weight, or none does: do not mix them")
        self.weighted = weight is not None
        loss = _zero_if_weightless(loss, unit)
        self.count += 1
        self.taken = self.taken + unit
        self.losses = self.losses + settle(loss)
        return loss, unit

    def _provisional(self, first: Number) -> Number:
        """N times the first weight: equal to W when all micro-batches weigh the same."""
        if not self.weighted:
            return float(self.length)
        first = torch.where(first > 0, first, 1.0) if isinstance(first, Tensor) else first or 1.0
        return self.length * (self.peers.total(first) if self.peers else first)


def _zero_if_weightless(loss: Tensor, weight: Number) -> Tensor:
    """The loss, or 0 if its weight is 0: a mean over no tokens is NaN, and NaN × 0 is NaN too."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, loss, torch.zeros_like(loss))
    return loss if weight else torch.where(torch.zeros_like(loss, dtype=torch.bool), loss, 0.0)


def _checked_weight(weight: Number) -> Number:
    if isinstance(weight, Tensor) and weight.numel() != 1:
        raise ValueError(f"weight must be one number, got a tensor of shape {tuple(weight.shape)}")
    weight = settle(weight) if isinstance(weight, Tensor) else weight
    if not isinstance(weight, Tensor):
        return check.number("weight", weight, at_least=0)
    return weight

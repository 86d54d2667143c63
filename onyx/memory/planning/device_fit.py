"""What fits on one device. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onyx.memory.devices.device import Device
from onyx.memory.footprint.footprint import Footprint
from onyx.memory.footprint.overhead import Overhead
from onyx.memory.footprint.stored import footprint_of, overhead_of
from onyx.memory.planning.request import PlanRequest
from onyx.memory.recipe import Recipe

ROUNDING = 1e-6
"""Tokens: keeps what fits exactly from being rounded away."""

LENGTHS = 16
"""Number of lengths, from the shortest to the longest sample, for which a token budget is computed."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The largest micro-batch of one recipe on one device."""

    device: Device
    """The device."""

    footprint: Footprint
    """What a micro-batch needs there."""

    overhead: Overhead
    """What the process takes beyond live tensors."""

    usable: int
    """Bytes that may be used."""

    needs: int
    """Bytes that a plan reckons with at micro-batch 1 of the greatest length."""

    samples: int
    """The largest micro-batch at the greatest length; 0 when not even one fits."""

    tokens: int
    """The most padded tokens at once, at every length that occurs."""

    def expected(self, live: int) -> int:
        """Bytes that the process takes, corrected by what the footprint's check found missing."""
        return self.overhead.expected(live * _correction(self.footprint))

    def high(self, live: int) -> int:
        """Bytes that it may take."""
        return self.overhead.high(live * _correction(self.footprint))


def usable_memory(device: Device, max_memory_usage: float, memory_safety_margin: float) -> int:
    """Bytes that a plan may use."""
    return int(min(max_memory_usage * device.memory_total, device.memory_free) * (1 - memory_safety_margin))


def fit_device(config: Any, request: PlanRequest, device: Device, recipe: Recipe | None = None) -> Fit:
    """What fits of the request, or of a changed recipe."""
    recipe = recipe or request.recipe
    footprint = footprint_of(config, recipe, device.kind)
    overhead = overhead_of(device)
    usable = usable_memory(device, request.max_memory_usage, request.memory_safety_margin)
    longest = min(request.longest, recipe.max_length)
    live = overhead.live(usable) / _correction(footprint)
    shortest = min(request.lengths, default=max(1, longest // LENGTHS))
    tokens = min(n * footprint.most_samples(live, n) for n in _lengths(min(shortest, longest), longest))
    return Fit(
        device=device,
        footprint=footprint,
        overhead=overhead,
        usable=usable,
        needs=overhead.cautious(footprint.peak(1, longest) * _correction(footprint)),
        samples=int((tokens + ROUNDING) // longest),
        tokens=int(tokens + ROUNDING),
    )


def _correction(footprint: Footprint) -> float:
    return 1 + max(0.0, -footprint.error)


def _lengths(shortest: int, longest: int) -> set[int]:
    return {shortest + (longest - shortest) * i // LENGTHS for i in range(LENGTHS)} | {longest}


def split(window: int, weights: Sequence[float]) -> list[int]:
    """Whole shares in proportion to the weights that sum to the window: the largest remainders are rounded up."""
    total = sum(weights)
    exact = [window * weight / total for weight in weights]
    shares = [int(each) for each in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_remainder[: window - sum(shares)]:
        shares[i] += 1
    return shares

"""How long a window is: a pure function of the update's number, or what the gradient noise says."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from onyx.accumulation import check

WARMUPS = ("linear", "cosine", "step")


class Schedule(Protocol):
    """Says, when a window opens, how many micro-batches it takes."""

    def length(self, update: int) -> int:
        """The length of the window of `update`, counted from 0 without the skipped ones."""
        ...


@dataclass(frozen=True)
class Constant:
    """N micro-batches, always."""

    steps: int

    def length(self, update: int) -> int:
        return self.steps


@dataclass(frozen=True)
class Warmup:
    """From 1 to N over the first `updates` updates, then N."""

    steps: int
    updates: int
    shape: str

    def length(self, update: int) -> int:
        if update >= self.updates:
            return self.steps
        t = update / self.updates
        if self.shape == "step":
            return Progressive(doubling(self.steps), self.updates).length(update)
        grown = t if self.shape == "linear" else (1 - math.cos(math.pi * t)) / 2
        return round(1 + (self.steps - 1) * grown)


@dataclass(frozen=True)
class Progressive:
    """Stage after stage. Each lasts one update, or all share `updates` updates in equal parts."""

    stages: Sequence[int]
    updates: int | None = None

    def length(self, update: int) -> int:
        stage = update if self.updates is None else update * len(self.stages) // self.updates
        return self.stages[min(stage, len(self.stages) - 1)]


def doubling(steps: int) -> list[int]:
    """1, 2, 4 … and N at last."""
    return [2**power for power in range(steps.bit_length()) if 2**power < steps] + [steps]


def warmup(steps: int, updates: int, shape: str | None) -> Schedule:
    """Constant N, or the warm-up to it that `shape` names."""
    check.whole("accumulation_steps", steps)
    check.whole("warmup_steps", updates, at_least=0)
    if shape is None or updates == 0:
        return Constant(steps)
    return Warmup(steps, updates, check.one_of("accumulation_scheduler", shape, WARMUPS))

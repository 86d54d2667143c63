"""How many micro-batches a window takes, as a function of the number of the update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from onyx.accumulation import check

WARMUPS = ("linear", "cosine", "step")


class Schedule(Protocol):
    """Chooses the length of a window when it opens."""

    def length(self, update: int) -> int:
        """The length of the window for update number `update`, from 0. Skipped updates do not count."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always N micro-batches."""

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
        done = update / self.updates
        if self.shape == "step":
            return Progressive(doubling(self.steps), self.updates).length(update)
        grown = done if self.shape == "linear" else (1 - math.cos(math.pi * done)) / 2
        return round(1 + (self.steps - 1) * grown)


@dataclass(frozen=True)
class Progressive:
    """One length after another. Each lasts one update, or an equal part of `updates` updates."""

    stages: Sequence[int]
    updates: int | None = None

    def length(self, update: int) -> int:
        stage = update if self.updates is None else update * len(self.stages) // self.updates
        return self.stages[min(stage, len(self.stages) - 1)]


def doubling(steps: int) -> list[int]:
    """1, 2, 4 … up to N, which is the last."""
    return [2**power for power in range(steps.bit_length()) if 2**power < steps] + [steps]


def warmup(steps: int, updates: int, shape: str | None) -> Schedule:
    """N always, or a warm-up from 1 to N of the given shape."""
    check.whole("accumulation_steps", steps)
    check.whole("warmup_steps", updates, at_least=0)
    if shape is None or updates == 0:
        return Constant(steps)
    return Warmup(steps, updates, check.one_of("accumulation_scheduler", shape, WARMUPS))

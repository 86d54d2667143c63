"""Helpers for tests of `onyx.accumulation.system`: a fake gauge, and accumulators over small models."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import SGD, Optimizer

from onyx.accumulation.gauge import Gauge
from onyx.accumulation.system import GradientAccumulationConfig, GradientAccumulationTrainer, GradientAccumulator
from tests.accumulation.exact import make_model

CPU = torch.device("cpu")


class Dial:
    """A gauge that returns the given memory pressures one after the other; the last one stays."""

    def __init__(self, *pressures: float) -> None:
        self._pressures = list(pressures)
        self.readings = 0

    def __call__(self, device: torch.device) -> Gauge:
        assert isinstance(device, torch.device)
        pressure = self._pressures[min(self.readings, len(self._pressures) - 1)]
        self.readings += 1
        return Gauge(own=0, used=round(pressure * 1000), total=1000)


def config_of(**changes: Any) -> GradientAccumulationConfig:
    """A config without clipping, so that an update applies the gradient as it is."""
    return GradientAccumulationConfig(**({"gradient_clipping": False, "accumulation_steps": 4} | changes))


def accumulator_of(
    model: Module, optimizer: Optimizer | None = None, *, gauge: Dial | None = None, **changes: Any
) -> GradientAccumulator:
    accumulator = GradientAccumulator(config_of(**changes), gauge=gauge or Dial(0.5))
    accumulator.setup_training(model, optimizer or SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    return accumulator


def trainer_of(
    model: Module, optimizer: Optimizer | None = None, *, gauge: Dial | None = None, **changes: Any
) -> GradientAccumulationTrainer:
    trainer = GradientAccumulationTrainer(config_of(**changes), gauge=gauge or Dial(0.5))
    trainer.setup_training(model, optimizer or SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    return trainer


class Slope(nn.Module):
    """One weight with the loss weight × x, so its gradient is x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: float | Tensor) -> Tensor:
        return self.weight * x


def slope(**changes: Any) -> tuple[Slope, GradientAccumulator]:
    """A slope with SGD of learning rate 1: each update moves the weight by minus the applied gradient."""
    model = Slope()
    return model, accumulator_of(model, SGD(model.parameters(), lr=1.0), **changes)


def applied(model: Slope, accumulator: GradientAccumulator, values: Iterable[float]) -> list[float]:
    """The gradients that were applied, one per window that ended."""
    moves = []
    for value in values:
        before = model.weight.item()
        if accumulator.accumulate_gradients(model(value))["should_optimize"]:
            moves.append(before - model.weight.item())
    return moves


def lengths(accumulator: GradientAccumulator, model: Slope, windows: int) -> list[int]:
    """The lengths of the next windows."""
    found = []
    for _ in range(windows):
        count = 1
        while not accumulator.accumulate_gradients(model(1.0))["should_optimize"]:
            count += 1
        found.append(count)
    return found


__all__ = [
    "CPU",
    "Dial",
    "Slope",
    "accumulator_of",
    "applied",
    "config_of",
    "lengths",
    "make_model",
    "slope",
    "trainer_of",
]

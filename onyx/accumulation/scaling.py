"""Loss scaling, three ways behind one shape: none, torch's GradScaler, the documented DynamicLossScaler."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from onyx.accumulation.loss_scaler import DynamicLossScaler


class Scaling(Protocol):
    """What a boundary needs of a loss scaler."""

    def scale(self, loss: Tensor) -> Tensor: ...

    def unscale(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> None: ...

    def step(self, optimizer: Optimizer) -> None: ...

    def update(self, finite: bool) -> None: ...

    def factor(self) -> float:
        """The scale now. Reads it from the device."""
        ...


class Unscaled:
    """float32 and bfloat16 need no scaling."""

    def scale(self, loss: Tensor) -> Tensor:
        return loss

    def unscale(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> None:
        """Nothing was scaled."""

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def update(self, finite: bool) -> None:
        """There is no scale to move."""

    def factor(self) -> float:
        return 1.0


class TorchScaling:
    """A torch GradScaler (or anything with its methods), enabled or not: its step and update are always called."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler

    def scale(self, loss: Tensor) -> Tensor:
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> None:
        self.scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        self.scaler.step(optimizer)

    def update(self, finite: bool) -> None:
        self.scaler.update()

    def factor(self) -> float:
        return float(self.scaler.get_scale())


class DynamicScaling:
    """The documented DynamicLossScaler, applied to `.grad` in place."""

    def __init__(self, scaler: DynamicLossScaler) -> None:
        self.scaler = scaler

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.scaler.scale

    def unscale(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> None:
        if gradients:
            torch._foreach_div_(list(gradients), self.scaler.scale)

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def update(self, finite: bool) -> None:
        self.scaler.update_scale(not finite)

    def factor(self) -> float:
        return self.scaler.scale


def scaling_for(scaler: Any) -> Scaling:
    """The scaling that a user's scaler (or None) stands for."""
    if scaler is None:
        return Unscaled()
    if isinstance(scaler, DynamicLossScaler):
        return DynamicScaling(scaler)
    if not all(callable(getattr(scaler, name, None)) for name in ("scale", "unscale_", "step", "update")):
        raise ValueError(f"scaler must be a torch GradScaler, a DynamicLossScaler or None, got {scaler!r}")
    return TorchScaling(scaler)

"""The end of a window: its gradients become an optimizer update, or the update is skipped."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from onyx.accumulation.loss_scaling import Scaling, Unscaled
from onyx.accumulation.window import Window


class Strategy(Protocol):
    """Reshapes the finished gradients of a window before they are measured and clipped."""

    def reshape(self, optimizer: Optimizer) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Update:
    """The outcome of a window."""

    stepped: bool
    """Whether the optimizer stepped. A skipped update never advances a schedule."""

    norm: float
    """Norm of the gradients over all parameters, before clipping. Not finite if a gradient is not."""

    skipped: Literal["not finite", "no weight"] | None = None
    """Why there was no step."""


def parameters_of(optimizer: Optimizer) -> list[Parameter]:
    """All parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def close(
    window: Window,
    optimizer: Optimizer,
    *,
    max_norm: float | None = None,
    scaling: Scaling | None = None,
    strategy: Strategy | None = None,
    skip_not_finite: bool = True,
) -> Update:
    """Turn a window's gradients into an update: unscale, correct, measure, clip, then step or skip, and clear.

    Without `skip_not_finite` a NaN is applied as it is; `norm` still shows it. A GradScaler would skip the step all
    the same without `Update` saying so: leave it on with one.
    """
    scaling = scaling or Unscaled()
    correction = window.correction()
    if correction is None:
        optimizer.zero_grad(set_to_none=True)
        return Update(stepped=False, norm=0.0, skipped="no weight")

    gradients = _gradients(optimizer)
    scaling.unscale(optimizer, gradients)
    if correction != 1.0 and gradients:
        torch._foreach_mul_(gradients, correction)
    if strategy is not None:
        strategy.reshape(optimizer)

    norm = _clip(optimizer, max_norm)
    finite = math.isfinite(norm)
    stepped = finite or not skip_not_finite
    if stepped:
        scaling.step(optimizer)
    scaling.update(finite)
    optimizer.zero_grad(set_to_none=True)
    return Update(stepped=stepped, norm=norm, skipped=None if stepped else "not finite")


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    return [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]


def _clip(optimizer: Optimizer, max_norm: float | None) -> float:
    """Clip, and return the norm before clipping. Reading it is the finite check and the one wait for the device.

    If a gradient is not finite, so is the norm; what clipping then writes is discarded with the gradients.
    """
    if max_norm is None:
        return float(torch.nn.utils.get_total_norm(_gradients(optimizer)))
    return float(torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), max_norm))


def clear(parameters: Iterable[Parameter]) -> None:
    """Set gradients to None, not to zeros: some optimizers move a parameter on a zero gradient too."""
    for parameter in parameters:
        parameter.grad = None

"""Loss scaling: small half-precision gradients do not become zero, large ones do not overflow.

`DynamicLossScaler` is the documented scaler. `Scaling` is what a boundary needs of any scaler: of none, of torch's
GradScaler, of the documented one. `scaling_for` finds the right one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from onyx.accumulation.check import flag, fraction, number, positive, whole
from onyx.accumulation.tree import Tree, all_finite, copy_leaves, flatten, is_gradient


@dataclass(frozen=True)
class DynamicLossScalerConfig:
    """How the scale starts and moves."""

    initial_scale: float = 2.0**15
    growth_factor: float = 2.0
    """The scale is multiplied by this after `growth_interval` updates without overflow."""
    backoff_factor: float = 0.5
    """The scale is multiplied by this after an overflow."""
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24

    def __post_init__(self) -> None:
        positive("min_scale", self.min_scale)
        number("initial_scale", self.initial_scale, at_least=self.min_scale)
        number("max_scale", self.max_scale, at_least=self.initial_scale)
        number("growth_factor", self.growth_factor, above=1)
        fraction("backoff_factor", self.backoff_factor)
        whole("growth_interval", self.growth_interval)


class DynamicLossScaler:
    """Differentiate `scale_loss(loss)`, then unscale the gradients, check for overflow and update the scale.

    Unscaling gradients of a loss that was not scaled makes them `scale` times too small.
    """

    def __init__(self, config: DynamicLossScalerConfig | None = None) -> None:
        self.config = DynamicLossScalerConfig() if config is None else config
        if not isinstance(self.config, DynamicLossScalerConfig):
            raise ValueError(f"config must be a DynamicLossScalerConfig or None, got {config!r}")  # noqa: TRY004
        self._scale = float(self.config.initial_scale)
        self._steps_since_growth = 0

    @property
    def scale(self) -> float:
        """The factor of the loss. Pass it to compiled JAX code as an argument: a traced constant would never change."""
        return self._scale

    @property
    def steps_since_growth(self) -> int:
        """Updates without overflow since the scale last changed or reached its bound."""
        return self._steps_since_growth

    def scale_loss(self, loss: Any) -> Any:
        """The loss times the scale: differentiate this."""
        if loss is None or not (isinstance(loss, Real) or is_gradient(loss)):
            raise TypeError(f"loss must be a number or a floating-point array, got {type(loss).__name__}")
        return loss * self._scale

    def unscale_gradients(self, grads: Tree) -> Tree:
        """New gradients, divided by the scale. Half precision comes back in float32, where small values survive."""
        flat = flatten(grads)
        own = copy_leaves(flat)
        return flat.structure.unflatten(
            [kind.library.divide(leaf, self._scale) for leaf, kind in zip(own, flat.kinds, strict=True)]
        )

    def check_overflow(self, grads: Tree) -> bool:
        """Whether any gradient holds a NaN or an Inf. The host waits once, not once per leaf."""
        return not all_finite(flatten(grads))

    def update_scale(self, overflow_detected: bool) -> None:
        """Lower the scale after an overflow; raise it after `growth_interval` updates without one."""
        config = self.config
        if flag("overflow_detected", overflow_detected):
            self._scale = max(self._scale * config.backoff_factor, float(config.min_scale))
            self._steps_since_growth = 0
            return
        self._steps_since_growth += 1
        if self._steps_since_growth >= config.growth_interval:
            self._scale = min(self._scale * config.growth_factor, float(config.max_scale))
            self._steps_since_growth = 0

    def state_dict(self) -> dict[str, Any]:
        """Two plain numbers."""
        return {"scale": self._scale, "steps_since_growth": self._steps_since_growth}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, or refuse it and change nothing."""
        keys = set(self.state_dict())
        if not isinstance(state, Mapping) or set(state) != keys:
            raise ValueError(f"state must be a mapping with the keys {sorted(keys)}, got {state!r}")
        low, high, interval = self.config.min_scale, self.config.max_scale, self.config.growth_interval
        scale = number("scale", state["scale"], at_least=low)
        steps = whole("steps_since_growth", state["steps_since_growth"], at_least=0)
        if scale > high:
            raise ValueError(f"scale must be <= max_scale = {high:g}, got {scale:g}")
        if steps >= interval:
            raise ValueError(f"steps_since_growth must be < growth_interval = {interval}, got {steps}")
        self._scale, self._steps_since_growth = scale, steps


class Scaling(Protocol):
    """What the end of a window needs of a loss scaler."""

    def scale(self, loss: Tensor) -> Tensor: ...

    def unscale(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> None: ...

    def step(self, optimizer: Optimizer) -> None: ...

    def update(self, finite: bool) -> None: ...

    def factor(self) -> float:
        """The current scale, read from the device."""
        ...


class Unscaled:
    """float32 and bfloat16 need no scaling."""

    def scale(self, loss: Tensor) -> Tensor:
        return loss

    def unscale(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> None:
        """There is no scale to divide by."""

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def update(self, finite: bool) -> None:
        """There is no scale to change."""

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
    """The `Scaling` for a user's scaler, or for None."""
    if scaler is None:
        return Unscaled()
    if isinstance(scaler, DynamicLossScaler):
        return DynamicScaling(scaler)
    if not all(callable(getattr(scaler, name, None)) for name in ("scale", "unscale_", "step", "update")):
        raise ValueError(f"scaler must be a torch GradScaler, a DynamicLossScaler or None, got {scaler!r}")
    return TorchScaling(scaler)

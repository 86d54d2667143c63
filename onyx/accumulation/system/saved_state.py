"""The saved state of an accumulator. All of it is checked before any of it is used."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import Module

from onyx.accumulation.system.config import GradientAccumulationConfig
from onyx.accumulation.system.noise import NoiseMeter, NoiseScale
from onyx.accumulation.system.state import AccumulationState
from onyx.accumulation.window import Peers

logger = logging.getLogger(__name__)

FORMAT = "onyx.accumulation.system/1"
_KEYS = {"format", "config", "state", "noise", "meter", "scaler", "gradients"}


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """All that the next micro-batch depends on."""

    config: dict[str, Any]
    state: AccumulationState
    noise: dict[str, float]

    meter: dict[str, Any] | None
    """The noise measured in the open window; None without a noise meter."""

    scaler: dict[str, Any] | None
    """State of the loss scaler; None without one. The gradients of an open window are multiplied by its scale."""

    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Of the open window, by parameter name."""

    @classmethod
    def of(
        cls,
        config: GradientAccumulationConfig,
        state: AccumulationState,
        noise: NoiseScale,
        meter: NoiseMeter | None,
        scaler: Any,
        model: Module,
    ) -> "SavedState":
        """The state now. Tensors are not copied."""
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        return cls(
            config=asdict(config),
            state=state,
            noise=noise.state_dict(),
            meter=meter.state_dict() if meter else None,
            scaler=None if scaler is None else scaler.state_dict(),
            gradients=gradients if state.window else {},
        )

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and JSON values."""
        return {
            "format": FORMAT,
            "config": self.config,
            "state": self.state.state_dict(),
            "noise": self.noise,
            "meter": self.meter,
            "scaler": self.scaler,
            "gradients": self.gradients,
        }

    @classmethod
    def checked(
        cls,
        saved: Any,
        config: GradientAccumulationConfig,
        model: Module,
        scaler: Any,
        peers: Peers | None = None,
    ) -> "SavedState":
        """A saved state that fits this model and scaler, or a ValueError."""
        if not isinstance(saved, Mapping) or saved.get("format") != FORMAT or set(saved) != _KEYS:
            raise ValueError(f"this is not a saved accumulation state: it needs the format {FORMAT}")
        state = AccumulationState.from_state_dict(saved["state"], peers)
        if state.window and not state.backward_by_caller and bool(saved["scaler"]) != _scales(scaler):
            raise ValueError(
                "the saved window's gradients were accumulated "
                f"{'with' if saved['scaler'] else 'without'} a loss scaler: set up training the same way"
            )
        NoiseScale().load_state_dict(_dict("noise", saved["noise"], {"squared", "variance", "windows"}))
        _log_other_settings(config, saved["config"])
        return cls(
            config=saved["config"],
            state=state,
            noise=saved["noise"],
            meter=None if saved["meter"] is None else _meter(saved["meter"]),
            scaler=saved["scaler"],
            gradients=_gradients(model, saved["gradients"]),
        )


def put_gradients(model: Module, gradients: Mapping[str, Tensor]) -> None:
    """Set the gradients of the model. Parameters without a saved one get None."""
    for name, parameter in model.named_parameters():
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else gradient.to(parameter.device, parameter.dtype, copy=True)


def restore(part: Any, saved: Any, name: str) -> None:
    """Load the state of a scheduler or scaler, if there are both. A state of another kind is a ValueError."""
    if part is None or not saved:
        return
    try:
        part.load_state_dict(saved)
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"the saved {name} is not of the kind in use, {type(part).__name__}: {error}") from error


def _scales(scaler: Any) -> bool:
    """Whether gradients are scaled. The state of a disabled GradScaler is empty."""
    return scaler is not None and bool(scaler.state_dict())


def _dict(name: str, value: Any, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        raise ValueError(f"saved {name} must have the keys {', '.join(sorted(keys))}")
    return value


def _meter(saved: Any) -> dict[str, Any]:
    meter = _dict("meter", saved, {"norms", "weights"})
    norms = _dict("norms", meter["norms"], {"sum", "count"})
    if not isinstance(meter["weights"], list) or norms["count"] != len(meter["weights"]):
        raise ValueError("a saved window has one weight for each of its micro-batches")
    return meter


def _gradients(model: Module, saved: Any) -> dict[str, Tensor]:
    if not isinstance(saved, Mapping):
        raise ValueError("saved gradients must be tensors by parameter name")  # noqa: TRY004
    named = dict(model.named_parameters())
    for name, gradient in saved.items():
        if name not in named:
            raise ValueError(f"a gradient was saved for {name!r}, which is no parameter of this model")
        if not isinstance(gradient, Tensor) or gradient.shape != named[name].shape:
            raise ValueError(f"the gradient saved for {name!r} does not have the shape {tuple(named[name].shape)}")
    return dict(saved)


def _log_other_settings(config: GradientAccumulationConfig, saved: Any) -> None:
    """Log which settings differ from the saved ones. Those of this accumulator apply."""
    if not isinstance(saved, Mapping):
        raise ValueError("a saved accumulation state holds its config")  # noqa: TRY004
    changed = [name for name, value in asdict(config).items() if saved.get(name) != value]
    if changed:
        logger.info("the saved state had other settings for %s: those of this accumulator apply", ", ".join(changed))

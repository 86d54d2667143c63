"""Mixed precision of one accumulator: its scaler, and counts of overflows, time and memory saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from onyx.accumulation.ads.config import GradientAccumulationConfig
from onyx.accumulation.boundary import Update
from onyx.accumulation.loss_scaling import Scaling, TorchScaling, Unscaled
from onyx.accumulation.precision import Precision, autocast, grad_scaler

_HALF = (torch.float16, torch.bfloat16)


class MixedPrecision:
    """The scaler and the autocast of one accumulator, and what it counts of them."""

    def __init__(self, config: GradientAccumulationConfig) -> None:
        self.config = config
        self.device = torch.accelerator.current_accelerator() or torch.device("cpu")
        # Only float16 on an accelerator needs a scale. This is known without the bfloat16 probe, which takes seconds.
        needs = config.amp_dtype == torch.float16 and self.device.type != "cpu"
        precision = config.precision(self.device) if needs else Precision.FLOAT32
        self.scaler = grad_scaler(precision, self.device, config.amp_init_scale)
        self.scaling: Scaling = TorchScaling(self.scaler) if self.scaler.is_enabled() else Unscaled()
        self.seconds = 0.0
        self.overflows = 0
        self.underflows = 0
        self.bytes_saved = 0
        self._scale: float | None = None
        self._scaler_enabled = self.scaler.is_enabled()

    @property
    def precision(self) -> Precision:
        return self.config.precision(self.device)

    @property
    def enabled(self) -> bool:
        return self._scaler_enabled or self.precision is not Precision.FLOAT32

    def uses(self, scaling: Scaling) -> bool:
        """Whether this micro-batch counts as mixed precision: by the settings, or by a scaler from the caller."""
        if isinstance(scaling, TorchScaling):
            self._scaler_enabled = bool(scaling.scaler.is_enabled())
        elif not isinstance(scaling, Unscaled):
            self._scaler_enabled = True
        return self.enabled

    def autocast(self) -> Any:
        """The context for forward."""
        return autocast(self.precision, self.device, self.config.amp_memory_efficient)

    @contextmanager
    def measure_saved_bytes(self) -> Iterator[None]:
        """A context for one forward: counts the bytes saved by tensors that backward keeps in half precision."""
        saved = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal saved
            if tensor.dtype in _HALF:
                saved += tensor.numel() * (4 - tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield
        self.bytes_saved = saved

    def scale(self, scaling: Scaling, fresh: bool) -> float:
        """The current scale. It changes at the end of a window only, so only then is it read from the device."""
        if fresh or self._scale is None:
            self._scale = scaling.factor()
        return self._scale

    def observe(self, update: Update, loss: float) -> None:
        """Count overflows and underflows. An underflow: all gradients are zero although the loss is not."""
        self.overflows += update.skipped == "not finite"
        self.underflows += update.stepped and update.norm == 0.0 and loss != 0.0

    def overflow_flags(self, update: Update | None) -> dict[str, bool]:
        """Overflow and underflow of the window. False until the window ends."""
        return {
            "overflow_detected": update is not None and update.skipped == "not finite",
            "underflow_detected": update is not None and update.stepped and update.norm == 0.0,
        }

    def stats(self) -> dict[str, Any]:
        """The counts; empty when everything runs in float32."""
        if not self.enabled:
            return {}
        return {
            "amp_enabled": self.config.amp_enabled,
            "scaler_scale": self._scale if self._scale is not None else 1.0,
            "memory_saved": self.bytes_saved,
            "training_time": self.seconds,
            "overflow_count": self.overflows,
            "underflow_count": self.underflows,
            "memory_savings_gb": self.bytes_saved / 1e9,
            "scaler_enabled": self._scaler_enabled,
            "autocast_enabled": self.precision is not Precision.FLOAT32,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "scaler": self.scaler.state_dict(),
            "seconds": self.seconds,
            "overflows": self.overflows,
            "underflows": self.underflows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.seconds = state["seconds"]
        self.overflows, self.underflows = state["overflows"], state["underflows"]
        self._scale = None

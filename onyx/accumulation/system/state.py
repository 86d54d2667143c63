"""Counters, open window and readings of an accumulator. The gradients are in `.grad` only."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from onyx.accumulation import check
from onyx.accumulation.boundary import Update
from onyx.accumulation.lazy_scalar import Number
from onyx.accumulation.window import Peers, Window

HISTORY = 1000
"""How many readings each history keeps."""


def _history(readings: Iterable[float] = ()) -> deque[float]:
    return deque(readings, maxlen=HISTORY)


@dataclass(kw_only=True)
class AccumulationState:
    """The state of an accumulator."""

    micro_batch_size: int
    """Samples of one micro-batch now."""

    total_steps: int = 0
    """Micro-batches taken in all."""

    optimizer_steps: int = 0
    """Updates made."""

    skipped_steps: int = 0
    """Windows whose update was skipped."""

    last_optimizer_step: int = 0
    """`total_steps` at the last update."""

    expected_updates: int | None = None
    """Updates that `train` expects; None if unknown."""

    nan_detected: bool = False
    """The gradients of a window held a NaN."""

    overflow_detected: bool = False
    """The gradients of a window were infinite, or overflowed under a loss scaler."""

    backward_by_caller: bool = False
    """Whether the caller runs backward for the open window itself."""

    gradient_norms: deque[float] = field(default_factory=_history)
    """Norms before clipping, of windows whose gradients were finite."""

    memory_usage: deque[float] = field(default_factory=_history)
    """Used share of the device, 0 to 1."""

    window: Window | None = None
    """The open window."""

    @property
    def accumulation_step(self) -> int:
        """Micro-batches in the open window."""
        return self.window.count if self.window else 0

    @property
    def accumulated_loss(self) -> Number:
        """Sum of the losses of the open window."""
        return self.window.losses if self.window else 0.0

    def record(self, update: Update, *, scaled: bool) -> None:
        """Count the outcome of a window. `scaled`: under a loss scaler, which overflows in normal operation."""
        if update.stepped:
            self.optimizer_steps += 1
            self.last_optimizer_step = self.total_steps
        else:
            self.skipped_steps += 1
        if not math.isfinite(update.norm):
            self.nan_detected |= math.isnan(update.norm)
            self.overflow_detected |= scaled or math.isinf(update.norm)
        elif update.skipped is None:
            self.gradient_norms.append(update.norm)

    def state_dict(self) -> dict[str, Any]:
        """JSON values, and tensors for numbers that are on a device."""
        saved: dict[str, Any] = {name: getattr(self, name) for name in (*_COUNTS, *_FLAGS, "expected_updates")}
        saved |= {name: list(getattr(self, name)) for name in _READINGS}
        window = self.window
        saved["window"] = window and {name: getattr(window, name) for name in _WINDOW}
        return saved

    @classmethod
    def from_state_dict(cls, saved: Mapping[str, Any], peers: Peers | None = None) -> "AccumulationState":
        """The state of a `state_dict`; a damaged one is a ValueError."""
        known = {each.name for each in fields(cls)}
        if not isinstance(saved, Mapping) or set(saved) != known:
            raise ValueError(f"an accumulation state has the keys {', '.join(sorted(known))}")
        updates = saved["expected_updates"]
        values: dict[str, Any] = {
            "micro_batch_size": check.whole("micro_batch_size", saved["micro_batch_size"]),
            "expected_updates": None if updates is None else check.whole("expected_updates", updates),
            "window": None if saved["window"] is None else _window(saved["window"], peers),
        }
        values |= {name: check.whole(name, saved[name], at_least=0) for name in _COUNTS if name not in values}
        values |= {name: check.flag(name, saved[name]) for name in _FLAGS}
        values |= {name: _history(_readings(name, saved[name])) for name in _READINGS}
        return cls(**values)


_COUNTS = ("micro_batch_size", "total_steps", "optimizer_steps", "skipped_steps", "last_optimizer_step")
_FLAGS = ("nan_detected", "overflow_detected", "backward_by_caller")
_READINGS = ("gradient_norms", "memory_usage")
_WINDOW = ("length", "weight", "count", "taken", "losses", "divisor", "weighted")


def _readings(name: str, value: Any) -> list[float]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of numbers, got {value!r}")  # noqa: TRY004
    return [check.number(name, reading, at_least=0) for reading in value]


def _window(saved: Any, peers: Peers | None) -> Window:
    if not isinstance(saved, Mapping) or set(saved) != set(_WINDOW):
        raise ValueError(f"a saved window has the keys {', '.join(_WINDOW)}")
    count = check.whole("count", saved["count"], at_least=0)
    length = check.whole("length", saved["length"], at_least=max(1, count))
    numbers = {name: saved[name] for name in ("weight", "taken", "losses", "divisor")}
    for name, value in numbers.items():
        # Not check.number: a loss may be NaN, and the others may be None.
        if not isinstance(value, int | float | Tensor | None) or isinstance(value, bool):
            raise ValueError(f"{name} of a saved window must be a number, got {value!r}")  # noqa: TRY004
    weighted = None if saved["weighted"] is None else check.flag("weighted", saved["weighted"])
    return Window(length=length, count=count, weighted=weighted, peers=peers, **numbers)

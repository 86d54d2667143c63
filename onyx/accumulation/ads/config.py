"""The settings of document 002's accumulator."""

import functools
from dataclasses import dataclass

import torch

from onyx.accumulation import check
from onyx.accumulation.precision import Precision, resolve
from onyx.accumulation.schedule import Schedule, warmup

_HALVES = (torch.float16, torch.bfloat16, torch.float32)
_FLAGS = (
    "auto_adjust_batch_size",
    "sync_gradients",
    "gradient_scaling",
    "mixed_precision",
    "amp_enabled",
    "amp_memory_efficient",
    "log_accumulation",
    "log_memory_usage",
    "profile_accumulation",
)


@dataclass
class GradientAccumulationConfig:
    """Settings of an accumulator. A change takes effect when the next window opens."""

    accumulation_steps: int = 4
    """N: micro-batches of a window."""

    effective_batch_size: int | None = None
    """Samples of a window; the adaptive accumulator sets it."""

    target_batch_size: int | None = None
    """Samples that a window should have; the adaptive accumulator computes N from it."""

    max_memory_usage: float = 0.9
    """Share of a device's memory that a plan may use."""

    memory_safety_margin: float = 0.1
    """Share of `max_memory_usage` that a plan leaves free."""

    auto_adjust_batch_size: bool = True
    """Let the planner choose the batch size; otherwise it is `target_batch_size`, or 8."""

    sync_gradients: bool = True
    """Exchange gradients once per window. False: on every micro-batch, for debugging."""

    gradient_scaling: bool = True
    """Let the trainer multiply the learning rate by 1/N, as document 002 says."""

    mixed_precision: bool = True
    """Train in `amp_dtype` where the device is faster with it. Needs `amp_enabled` too."""

    amp_enabled: bool = True
    """Second switch of mixed precision. False: everything runs in float32."""

    amp_dtype: torch.dtype = torch.float16
    """Dtype of forward under mixed precision."""

    amp_init_scale: float = 2.0**16
    """Initial loss scale for float16."""

    amp_memory_efficient: bool = True
    """Turn off autocast's cache of half-precision weights."""

    log_accumulation: bool = True
    """Log every update."""

    log_memory_usage: bool = True
    """Record and log the memory in use."""

    profile_accumulation: bool = False
    """Add the time of each phase to the statistics."""

    gradient_clipping: float | None = 1.0
    """Largest norm of the gradients over all parameters; None never clips."""

    warmup_steps: int = 0
    """Updates over which the window grows from 1 to N."""

    accumulation_scheduler: str | None = None
    """How the window grows: "linear", "cosine" or "step". None keeps N constant."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise ValueError for a setting out of its range; the message says what is allowed."""
        check.whole("accumulation_steps", self.accumulation_steps)
        for name in ("effective_batch_size", "target_batch_size"):
            if getattr(self, name) is not None:
                check.whole(name, getattr(self, name))
        check.fraction("max_memory_usage", self.max_memory_usage)
        check.fraction("memory_safety_margin", self.memory_safety_margin)
        for name in _FLAGS:
            check.flag(name, getattr(self, name))
        check.positive("amp_init_scale", self.amp_init_scale)
        if self.amp_dtype not in _HALVES:
            raise ValueError(
                f"amp_dtype must be torch.float16, torch.bfloat16 or torch.float32, got {self.amp_dtype!r}"
            )
        if self.gradient_clipping is not None:
            check.positive("gradient_clipping", self.gradient_clipping)
        self.schedule()

    def schedule(self) -> Schedule:
        """The length of each window."""
        return _schedule(self.accumulation_steps, self.warmup_steps, self.accumulation_scheduler)

    def precision(self, device: torch.device) -> Precision:
        """The precision of forward on `device`."""
        if not (self.mixed_precision and self.amp_enabled):
            return Precision.FLOAT32
        return resolve(self.amp_dtype, device)


# Every window builds the schedule again, because the config may have changed; the cache keeps that cheap.
@functools.lru_cache(maxsize=64)
def _schedule(steps: int, updates: int, shape: str | None) -> Schedule:
    if shape is not None and updates == 0:
        warmup(steps, 1, shape)  # refuses an unknown name even where no warm-up happens
    return warmup(steps, updates, shape)

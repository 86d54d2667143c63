"""The settings of document 004's accumulator and trainer, checked when they are made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from onyx.accumulation import check


class AccumulationMode(StrEnum):
    """What decides how many micro-batches a window takes."""

    STANDARD = "standard"
    """Always `accumulation_steps`."""

    EFFICIENT = "efficient"
    """As standard: no mode keeps gradients anywhere but in `.grad`."""

    ADAPTIVE = "adaptive"
    """By the measured gradient noise scale, up to `target_batch_size` samples."""

    PROGRESSIVE = "progressive"
    """`accumulation_schedule`, one entry per update."""

    SELECTIVE = "selective"
    """As standard, and parameters that are listed with weight 0 are not updated."""


class AccumulationStrategy(StrEnum):
    """What is done to the gradients of a window before clipping."""

    UNIFORM = "uniform"
    """Nothing."""

    LAYER_WISE = "layer_wise"
    """Multiplied by `layer_accumulation_weights`."""

    PARAMETER_GROUPS = "parameter_groups"
    """Multiplied by `parameter_group_weights`."""

    ADAPTIVE_LAYERS = "adaptive_layers"
    """Each parameter's gradient is divided by its norm where that is above 1."""

    MEMORY_AWARE = "memory_aware"
    """Nothing: above `memory_threshold` the micro-batch shrinks, never the gradient."""


@dataclass
class GradientAccumulationConfig:
    """Settings of an accumulator and of a trainer."""

    accumulation_steps: int = 4
    """Micro-batches per window; where adaptive mode starts; where a progressive doubling ends."""

    mode: AccumulationMode = AccumulationMode.STANDARD
    strategy: AccumulationStrategy = AccumulationStrategy.UNIFORM

    effective_batch_size: int = 64
    """Most samples of one micro-batch; the name is document 004's. A trainer cuts larger batches into such parts."""

    target_batch_size: int = 256
    """In adaptive mode: samples that a window has at most, rounded up to whole micro-batches."""

    memory_threshold: float = 0.8
    """Share of the device's memory above which the micro-batch shrinks (adaptive mode, memory_aware strategy)."""

    gradient_scaling: bool = True
    """Scale the loss with a GradScaler where the precision needs it. It does not change the learning rate."""

    loss_scaling: bool = True
    """The update is the mean over the window. False: the sum of its micro-batches' losses."""

    adaptive_scaling: bool = False
    """In adaptive mode: follow the gradient noise. False: always fill `target_batch_size`."""

    progressive_scaling: bool = False
    """In progressive mode without a schedule: 1, 2, 4 … `accumulation_steps`."""

    selective_accumulation: bool = False
    """In any mode: do not update parameters that are listed with weight 0."""

    accumulation_schedule: list[int] = field(default_factory=list)
    """In progressive mode: the window length of update 0, 1, 2 …; the last one stays."""

    layer_accumulation_weights: dict[str, float] = field(default_factory=dict)
    """By full parameter name. What is not listed weighs 1."""

    parameter_group_weights: dict[str, float] = field(default_factory=dict)
    """By "group_<i>", the optimizer's i-th parameter group. What is not listed weighs 1."""

    memory_monitoring: bool = True
    """Read the memory of the device: when a window opens if the micro-batch depends on it, else for each log line.
    False: no readings, so the micro-batch never shrinks."""

    gradient_clipping: bool = True
    clipping_norm: float = 1.0
    """Largest norm of an update's gradients over all parameters."""

    nan_handling: bool = True
    """Skip and count an update whose gradients are not finite. False: apply it as it is, and log a warning."""

    checkpoint_frequency: int = 1
    """Epochs from one checkpoint of `train` to the next."""

    logging_frequency: int = 10
    """Micro-batches from one log line to the next."""

    validation_frequency: int = 1
    """Epochs from one validation of `train` to the next."""

    save_accumulation_state: bool = True
    """Save the state of the accumulator in the checkpoint of a trainer, including the open window."""

    restore_accumulation_state: bool = True
    """Restore that state from a checkpoint that has it. False: the accumulator starts afresh."""

    def __post_init__(self) -> None:
        self.mode = _member("mode", self.mode, AccumulationMode)
        self.strategy = _member("strategy", self.strategy, AccumulationStrategy)
        for name in _COUNTS:
            check.whole(name, getattr(self, name))
        for name in _FLAGS:
            check.flag(name, getattr(self, name))
        check.fraction("memory_threshold", self.memory_threshold)
        check.positive("clipping_norm", self.clipping_norm)
        self.accumulation_schedule = _schedule(self.accumulation_schedule)
        self.layer_accumulation_weights = _weights(
            "layer_accumulation_weights", self.layer_accumulation_weights, r".+", "a parameter's full name"
        )
        self.parameter_group_weights = _weights(
            "parameter_group_weights", self.parameter_group_weights, r"group_\d+", "group_0, group_1 …"
        )
        if self.mode is AccumulationMode.PROGRESSIVE and not (self.accumulation_schedule or self.progressive_scaling):
            raise ValueError(
                "progressive mode needs an accumulation_schedule such as [2, 4, 8], "
                "or progressive_scaling=True for 1, 2, 4 … accumulation_steps"
            )

    @property
    def selective(self) -> bool:
        """Whether parameters with weight 0 are left out."""
        return self.selective_accumulation or self.mode is AccumulationMode.SELECTIVE

    @property
    def sizes_micro_batches(self) -> bool:
        """Whether memory pressure changes the size of the micro-batch."""
        adaptive = self.mode is AccumulationMode.ADAPTIVE
        return self.memory_monitoring and (adaptive or self.strategy is AccumulationStrategy.MEMORY_AWARE)


_COUNTS = (
    "accumulation_steps",
    "effective_batch_size",
    "target_batch_size",
    "checkpoint_frequency",
    "logging_frequency",
    "validation_frequency",
)
_FLAGS = (
    "gradient_scaling",
    "loss_scaling",
    "adaptive_scaling",
    "progressive_scaling",
    "selective_accumulation",
    "memory_monitoring",
    "gradient_clipping",
    "nan_handling",
    "save_accumulation_state",
    "restore_accumulation_state",
)

_Member = TypeVar("_Member", bound=StrEnum)


def _member(name: str, value: Any, kind: type[_Member]) -> _Member:
    return kind(check.one_of(name, value, [member.value for member in kind]))


def _schedule(value: Any) -> list[int]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"accumulation_schedule must be a list of whole numbers, got {value!r}")  # noqa: TRY004
    return [check.whole(f"accumulation_schedule[{index}]", steps) for index, steps in enumerate(value)]


def _weights(field_name: str, value: Any, pattern: str, allowed: str) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{field_name} must be a dict of name to weight, got {value!r}")  # noqa: TRY004
    for key in value:
        if not isinstance(key, str) or not re.fullmatch(pattern, key):
            raise ValueError(f"a key of {field_name} must be {allowed}; got {key!r}")
    return {key: check.number(f"the weight of {key}", weight, at_least=0) for key, weight in value.items()}

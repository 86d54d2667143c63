"""What calls return: plain dicts with the documented keys, typed.

Inside a window a Number may be a 0-dim tensor on the device; at the end of the window it is a Python number.
"""

from typing import NotRequired, TypedDict

import torch

from onyx.accumulation.lazy_scalar import Number


class MicroBatchResult(TypedDict):
    """Of one micro-batch. On the one that ends a window, the figures are those of the full window."""

    loss: Number
    accumulated_loss: Number
    """Sum of the losses of the window."""
    accumulation_step: int
    """Micro-batches in the window, this one included."""
    should_optimize: bool
    """The window ended here, even if its update was skipped."""
    effective_batch_size: int
    """Current micro-batch × window length."""


class AccumulationStats(TypedDict):
    """Statistics of an accumulator."""

    current_step: int
    """Micro-batches taken in all."""
    accumulation_step: int
    """Micro-batches in the open window."""
    accumulation_steps: int
    """Length of the open window, or of the next one."""
    effective_batch_size: int
    accumulated_loss: float
    average_gradient_norm: float
    total_optimizer_steps: int
    nan_detected: bool
    overflow_detected: bool
    memory_usage: float
    """Used share of the device, 0 to 1, at the last reading; 0.0 without one."""


class StepResult(TypedDict):
    """Of one batch of a loader, however many micro-batches it was cut into."""

    loss: Number
    output_shape: torch.Size | None
    target_shape: torch.Size
    accumulation_step: int
    should_optimize: bool
    effective_batch_size: int


class EpochResult(TypedDict):
    """Of one epoch of training."""

    epoch_loss: float
    """Mean over the samples."""
    num_batches: int
    optimization_steps: int
    """Updates made. Skipped ones do not count."""
    effective_batch_size: int


class ValidationResult(TypedDict):
    """Of one pass over held-out data."""

    val_loss: float
    num_batches: int


class HistoryEntry(EpochResult):
    """What `train` returns of each epoch."""

    epoch: int
    """Counted from 1."""
    val_loss: NotRequired[float]


def history_entry(epoch: int, result: EpochResult) -> HistoryEntry:
    """The entry of an epoch, before its validation."""
    return {
        "epoch": epoch,
        "epoch_loss": result["epoch_loss"],
        "num_batches": result["num_batches"],
        "optimization_steps": result["optimization_steps"],
        "effective_batch_size": result["effective_batch_size"],
    }


class TrainingStats(TypedDict):
    """Statistics of a trainer."""

    current_epoch: int
    """Epochs finished."""
    accumulation_stats: AccumulationStats
    training_history: list[HistoryEntry]

"""Add an accumulator to a user's own trainer, and wrap its model for several GPUs or processes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel

from onyx.accumulation.ads.accumulator import GradientAccumulator
from onyx.accumulation.ads.config import GradientAccumulationConfig

logger = logging.getLogger("onyx.server.features.ads.gradient_accumulation")

T = TypeVar("T")


@contextmanager
def gradient_accumulation_context(accumulator: GradientAccumulator) -> Iterator[GradientAccumulator]:
    """A context for a training loop: warns if the loop leaves a window open, whose gradients no update uses."""
    yield accumulator
    window = accumulator.open_window
    if window is not None:
        logger.warning(
            "ended inside a window (%d of %d micro-batches): flush() applies it, reset_accumulation() drops it",
            window.count,
            window.length,
        )


def integrate_with_dataparallel(trainer: T, config: GradientAccumulationConfig) -> T:
    """Give `trainer` an `accumulator`, and wrap its `model` in DataParallel if there are several GPUs."""
    model = _model_of(trainer)
    if torch.cuda.device_count() > 1 and not isinstance(model, DataParallel):
        _set(trainer, "model", DataParallel(model))
    return _set(trainer, "accumulator", GradientAccumulator(config))


def integrate_with_distributed(trainer: T, config: GradientAccumulationConfig) -> T:
    """Give `trainer` an `accumulator`, and wrap its `model` in DDP if a process group is initialized."""
    model = _model_of(trainer)
    running = distributed.is_available() and distributed.is_initialized()
    if running and not isinstance(model, DistributedDataParallel):
        _set(trainer, "model", DistributedDataParallel(model))
    return _set(trainer, "accumulator", GradientAccumulator(config))


def _model_of(trainer: Any) -> Module:
    model = getattr(trainer, "model", None)
    if not isinstance(model, Module):
        raise ValueError("trainer must have a `model` that is a torch module: set it up first")  # noqa: TRY004
    return model


def _set(trainer: T, name: str, value: Any) -> T:
    setattr(trainer, name, value)
    return trainer

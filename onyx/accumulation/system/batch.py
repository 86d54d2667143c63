"""Checks of the batches and losses that a user gives, and counts of what a loader gives."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from onyx.accumulation import check
from onyx.accumulation.system.micro_batch import parts


def checked_batch(data: Any, target: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch, moved to the device. Anything but two tensors of equally many samples is a ValueError."""
    for name, value in (("data", data), ("target", target)):
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) == 0:
            raise ValueError(f"{name} must be a tensor whose first dimension is at least one sample, got {value!r}")
    if len(data) != len(target):
        raise ValueError(f"data and target must have as many samples, got {len(data)} and {len(target)}")
    return data.to(device, non_blocking=True), target.to(device, non_blocking=True)


def joined_shape(shapes: Sequence[torch.Size | None]) -> torch.Size | None:
    """The shape of an output that was computed in parts; None if the output is not a tensor."""
    if len(shapes) == 1 or None in shapes:
        return shapes[0] if None not in shapes else None
    batched = [shape for shape in shapes if shape]
    return torch.Size([sum(shape[0] for shape in batched), *batched[0][1:]]) if batched else shapes[0]


def at_least_one_sample(samples: int) -> int:
    """The number of samples of an epoch, to divide by. An empty loader is a ValueError, not a loss of 0."""
    if not samples:
        raise ValueError("the loader gave no batch: give it at least one")
    return samples


def micro_batches_of(loader: Iterable[Any], micro_batch: int) -> int | None:
    """How many micro-batches an epoch of the loader has; None for a loader without a length."""
    try:
        batches = len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None
    return batches * parts(getattr(loader, "batch_size", None) or 1, micro_batch)


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """A context in evaluation mode. Afterwards every module is back in its own mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def check_loss(loss: Any, backward: Any, weight: Any, reduction: Any) -> None:
    """Raise ValueError for arguments that cannot be accumulated, before anything is counted."""
    check.flag("backward", backward)
    check.one_of("reduction", reduction, ["mean", "sum"])
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ValueError(f"loss must be a tensor of one number, got {loss!r}")
    if backward and not loss.requires_grad:
        raise ValueError("loss has no graph to differentiate: compute it with gradients, or pass backward=False")
    if weight is not None and not backward:
        raise ValueError("weight needs backward=True: a gradient that is already there cannot be weighted")

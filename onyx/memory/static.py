"""What a training process holds before the first sample: exact, counted on a model without weights."""

from collections.abc import Iterable

import torch
from torch import nn

from onyx.memory.footprint import Static

ADAM_STATES = 2  # exp_avg and exp_avg_sq, each as large as the weight
STEP_BYTES = 4  # the update count, one float32 per trained tensor


def count(model: nn.Module) -> Static:
    """Count a model on any device, meta included."""
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients = _bytes(trained)
    return Static(
        weights=_bytes(model.parameters()),
        buffers=_bytes(model.buffers()),
        gradients=gradients,
        optimizer=ADAM_STATES * gradients + STEP_BYTES * len(trained),
    )


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in {id(each): each for each in tensors}.values())

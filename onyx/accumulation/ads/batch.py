"""A loader's batch, whatever its shape: what goes into the model and what comes out as a loss."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

Criterion = Callable[[Any, Any], Tensor]


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`."""
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [to_device(value, device) for value in batch]
    return batch.to(device, non_blocking=True) if isinstance(batch, Tensor) else batch


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor."""
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(first)


def loss_of(model: Module, batch: Any, criterion: Criterion | None) -> Tensor:
    """Forward. A pair goes through the criterion; a dict is the model's keywords, with its own loss or labels."""
    if isinstance(batch, Mapping):
        return _keyword_loss(model, batch, criterion)
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise ValueError("a batch must be a pair (inputs, targets) or a dict of the model's keywords")
    if criterion is None:
        raise ValueError("batches of (inputs, targets) need a criterion")
    inputs, targets = batch
    return criterion(model(inputs), targets)


def _keyword_loss(model: Module, batch: Mapping[str, Any], criterion: Criterion | None) -> Tensor:
    outputs = model(**batch)
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    if criterion is None or "labels" not in batch:
        raise ValueError("the model returned no loss: give the batch labels, and train_epoch a criterion")
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    return criterion(logits, batch["labels"])

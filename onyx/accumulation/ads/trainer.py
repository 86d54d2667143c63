"""Document 002's trainer: trains a model epoch by epoch, in windows, on any iterable of batches."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from onyx.accumulation.ads.accumulator import GradientAccumulator
from onyx.accumulation.ads.config import GradientAccumulationConfig
from onyx.accumulation.lazy_scalar import Number, read, settle

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
    """Run forward and return the loss.

    A pair is (inputs, targets) for the criterion. A dict is the keyword arguments of the model, which returns a loss
    itself, or logits that the criterion compares with `labels`.
    """
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


_SCALED = "onyx_lr_scaled"


class GradientAccumulationTrainer:
    """Trains a model epoch by epoch, in windows, with mixed precision where the device has it."""

    def __init__(self, config: GradientAccumulationConfig) -> None:
        self.config = config
        self.accumulator = GradientAccumulator(config)
        self.model: Module | None = None
        self.optimizer: Optimizer | None = None
        self.device = torch.device("cpu")

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """The scaler, never None: disabled where the loss needs no scaling."""
        return self.accumulator.scaler

    def setup_training(self, model: Module, optimizer: Optimizer, gpu_ids: Sequence[int] = ()) -> None:
        """Put the model on its device, and scale the learning rates once if the config says so."""
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and gpu_ids:
            self.device = torch.device(accelerator.type, gpu_ids[0])
        else:
            self.device = torch.device("cpu")
        self.model = model.to(self.device)
        self.optimizer = optimizer
        if self.config.gradient_scaling:
            _scale_rates(optimizer, self.accumulator.get_learning_rate_scale())

    async def train_epoch(
        self,
        model: Module,
        dataloader: Iterable[Any],
        optimizer: Optimizer,
        criterion: Criterion | None,
        epoch: int,
    ) -> dict[str, Any]:
        """Train over the loader once, in a thread, so that the event loop stays free.

        Cancelling ends it at the next batch.
        """
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self._train_epoch, model, dataloader, optimizer, criterion, epoch, stop)
        except asyncio.CancelledError:
            stop.set()
            raise

    def _train_epoch(
        self,
        model: Module,
        dataloader: Iterable[Any],
        optimizer: Optimizer,
        criterion: Criterion | None,
        epoch: int,
        stop: threading.Event,
    ) -> dict[str, Any]:
        model.train()
        device = next(model.parameters()).device
        losses: Number = 0.0
        batches, samples, largest = 0, 0, 0
        for batch in dataloader:
            if stop.is_set():
                break
            size = samples_in(batch)
            losses = losses + self._micro_batch(model, to_device(batch, device), optimizer, criterion) * size
            batches, samples, largest = batches + 1, samples + size, max(largest, size)
        if not batches:
            raise ValueError(f"epoch {epoch}: the loader is empty, there is nothing to train on")
        self.accumulator.flush(model, optimizer)
        stats = self.accumulator.get_accumulation_stats()
        return {
            "loss": read(losses) / samples,
            "num_batches": batches,
            "accumulation_stats": stats,
            "effective_batch_size": min(self.accumulator.get_effective_batch_size(largest), samples),
            "mixed_precision_enabled": stats["mixed_precision_enabled"],
            "mp_stats": stats["mp_stats"],
        }

    def _micro_batch(self, model: Module, batch: Any, optimizer: Optimizer, criterion: Criterion | None) -> Number:
        mixed = self.accumulator.mixed
        with self.accumulator.micro_batch(model):
            if mixed.enabled and not mixed.bytes_saved:
                with mixed.measure_saved_bytes(), mixed.autocast():
                    loss = loss_of(model, batch, criterion)
            else:
                with mixed.autocast():
                    loss = loss_of(model, batch, criterion)
            self.accumulator.accumulate_gradients(loss, model, optimizer, weight=samples_in(batch))
        return settle(loss)


def _scale_rates(optimizer: Optimizer, factor: float) -> None:
    """Multiply the learning rate of each group, once: a key in the group, kept in its state dict too, records it."""
    for group in optimizer.param_groups:
        if _SCALED not in group:
            group["lr"] = group["lr"] * factor
            group[_SCALED] = True

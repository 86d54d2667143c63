"""Document 004's trainer: epochs over a loader, each batch cut to the current micro-batch."""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import Module
from torch.optim import Optimizer

from onyx.accumulation import check
from onyx.accumulation.gauge import Gauge, read_gauge
from onyx.accumulation.lazy_scalar import Number, read, settle
from onyx.accumulation.precision import Precision
from onyx.accumulation.system.accumulator import GradientAccumulator
from onyx.accumulation.system.batch import admit, counted, evaluating, micro_batches_of, whole_shape
from onyx.accumulation.system.checkpoint import Checkpoint, check_model, read_checkpoint, write_checkpoint
from onyx.accumulation.system.checkpoint_dir import check_replaceable
from onyx.accumulation.system.config import AccumulationMode, GradientAccumulationConfig
from onyx.accumulation.system.micro_batch import MicroBatchChooser, halve_under_pressure, next_part
from onyx.accumulation.system.results import (
    EpochResult,
    HistoryEntry,
    StepResult,
    TrainingStats,
    ValidationResult,
    remembered,
)
from onyx.accumulation.system.saved_state import restore
from onyx.accumulation.system.setup import SetupHolder
from onyx.accumulation.system.window_policy import expected_updates

logger = logging.getLogger(__name__)


class GradientAccumulationTrainer(SetupHolder):
    """Trains a model on batches of (data, target), first dimension samples.

    A batch larger than the micro-batch is cut, and each part weighs what it has of samples. So an update is that of
    the window's samples as one batch, however they were cut.
    """

    def __init__(
        self,
        config: GradientAccumulationConfig,
        *,
        gauge: Callable[[torch.device], Gauge] = read_gauge,
        choose_micro_batch: MicroBatchChooser = halve_under_pressure,
    ) -> None:
        self.accumulator = GradientAccumulator(config, gauge=gauge, choose_micro_batch=choose_micro_batch)
        self.config = config
        self.current_epoch = 0
        """Epochs finished."""
        self.training_history: list[HistoryEntry] = []
        self._first_epoch = 0

    def setup_training(
        self,
        model: Module,
        optimizer: Optimizer,
        criterion: Callable[..., Any],
        scheduler: Any = None,
        device: torch.device | str | None = None,
        *,
        precision: Precision | str = Precision.FLOAT32,
        scaler: Any = None,
    ) -> None:
        """Take up a model: see the accumulator's `setup_training`. The criterion's reduction is mean or sum."""
        self.accumulator.setup_training(
            model, optimizer, criterion, scheduler, device, precision=precision, scaler=scaler
        )
        self._setup = self.accumulator.setup

    def train_step(self, data: Tensor, target: Tensor) -> StepResult:
        """Train on one batch of a loader, in as many micro-batches as its size asks for."""
        setup, accumulator = self.setup, self.accumulator
        data, target = admit(data, target, setup.device)
        samples, done, ended = len(data), 0, False
        total: Number = 0.0
        shapes: list[torch.Size | None] = []
        while done < samples:
            with accumulator.micro_batch(batch_size=samples):
                size = next_part(samples - done, accumulator.micro_batch_size)
                part = slice(done, done + size)
                with setup.autocast():
                    output = setup.model(data[part])
                    loss = setup.criterion(output, target[part])
                # A sum counts every batch of the loader once, however it was cut; a mean counts samples.
                weight = size if self.config.loss_scaling else size / samples
                result = accumulator.accumulate_gradients(loss, weight=weight, reduction=setup.reduction)
            total = total + result["loss"] * (size / samples if setup.reduction == "mean" else 1.0)
            ended = ended or result["should_optimize"]
            shapes.append(getattr(output, "shape", None))
            done += size
        return {
            "loss": total,
            "output_shape": whole_shape(shapes),
            "target_shape": target.shape,
            "accumulation_step": result["accumulation_step"],
            "should_optimize": ended,
            "effective_batch_size": result["effective_batch_size"],
        }

    def train_epoch(self, train_loader: Iterable[Any]) -> EpochResult:
        """Train on every batch. The last window is applied however short it is."""
        self.setup.model.train()
        state = self.accumulator.state
        before, batches, samples = state.optimizer_steps, 0, 0
        total: Number = 0.0
        for data, target in train_loader:
            loss = self.train_step(data, target)["loss"]
            total = total + (loss * len(data) if self.setup.reduction == "mean" else loss)
            batches, samples = batches + 1, samples + len(data)
        self.accumulator.flush()
        return {
            "epoch_loss": read(total) / counted(samples),
            "num_batches": batches,
            "optimization_steps": state.optimizer_steps - before,
            "effective_batch_size": self.accumulator.get_accumulation_stats()["effective_batch_size"],
        }

    def validate_epoch(self, val_loader: Iterable[Any]) -> ValidationResult:
        """The loss on every batch. Trains nothing, and leaves the model's modes as they were."""
        setup = self.setup
        batches, samples = 0, 0
        total: Number = 0.0
        with evaluating(setup.model), torch.no_grad():
            for batch_data, batch_target in val_loader:
                data, target = admit(batch_data, batch_target, setup.device)
                size = next_part(len(data), self.accumulator.micro_batch_size)
                for x, y in zip(data.split(size), target.split(size), strict=True):
                    with setup.autocast():
                        loss = settle(setup.criterion(setup.model(x), y))
                    total = total + loss * (len(x) if setup.reduction == "mean" else 1.0)
                batches, samples = batches + 1, samples + len(data)
        return {"val_loss": read(total) / counted(samples), "num_batches": batches}

    def train(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        num_epochs: int = 10,
        save_dir: str | os.PathLike[str] | None = "checkpoints",
    ) -> list[HistoryEntry]:
        """Train `num_epochs` epochs. After `load_checkpoint`: what is left of the run that saved it.

        Checkpoints are `save_dir`/epoch_<n>; None saves none. Where anything else stands at one of these paths, nothing
        is trained: FileExistsError.
        """
        last = self._first_epoch + check.whole("num_epochs", num_epochs)
        self._expect(train_loader, num_epochs)
        if save_dir is not None and self._writes:
            for epoch in filter(self._saves_after, range(self.current_epoch + 1, last + 1)):
                check_replaceable(Path(save_dir) / f"epoch_{epoch}")  # now, and not after hours
        while self.current_epoch < last:
            entry = remembered(self.current_epoch + 1, self.train_epoch(train_loader))
            self.current_epoch += 1
            if val_loader is not None and self.current_epoch % self.config.validation_frequency == 0:
                entry["val_loss"] = self.validate_epoch(val_loader)["val_loss"]
            self.training_history.append(entry)
            logger.info("epoch %d of %d: %s", self.current_epoch, last, entry)
            if save_dir is not None and self._writes and self._saves_after(self.current_epoch):
                self.save_checkpoint(Path(save_dir) / f"epoch_{self.current_epoch}", self.current_epoch)
        self._first_epoch = self.current_epoch
        return self.training_history

    def save_checkpoint(self, path: str | os.PathLike[str], epoch: int) -> None:
        """Save everything that training depends on into a directory at `path`.

        It replaces an earlier checkpoint or an empty directory. Anything else stays: FileExistsError.
        """
        setup, accumulator = self.setup, self.accumulator
        checkpoint = Checkpoint(
            epoch=check.whole("epoch", epoch, at_least=0),
            first_epoch=self._first_epoch,
            history=self.training_history,
            model=setup.bare_model.state_dict(),
            training={
                "optimizer": setup.optimizer.state_dict(),
                "scheduler": None if setup.scheduler is None else setup.scheduler.state_dict(),
                "scaler": None if accumulator.scaler is None else accumulator.scaler.state_dict(),
            },
            accumulation=accumulator.state_dict() if self.config.save_accumulation_state else None,
        )
        write_checkpoint(path, checkpoint)
        logger.info("checkpoint of epoch %d saved to %s", epoch, path)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint. One that is damaged, or of another model, is a ValueError."""
        setup, accumulator = self.setup, self.accumulator
        checkpoint = read_checkpoint(path)
        accumulation = checkpoint.accumulation if self.config.restore_accumulation_state else None
        # Whatever can be refused is refused before anything is changed.
        check_model(setup.bare_model, checkpoint.model)
        if accumulation is not None:
            accumulator.check_state_dict(accumulation)
        restore(setup.scheduler, checkpoint.training["scheduler"], "scheduler")
        restore(accumulator.scaler, checkpoint.training["scaler"], "scaler")
        setup.optimizer.load_state_dict(checkpoint.training["optimizer"])
        setup.bare_model.load_state_dict(checkpoint.model)
        if accumulation is None:
            accumulator.reset()
        else:
            accumulator.load_state_dict(accumulation)
        self.current_epoch, self._first_epoch = checkpoint.epoch, checkpoint.first_epoch
        self.training_history = list(checkpoint.history)
        logger.info("checkpoint of epoch %d loaded from %s", checkpoint.epoch, path)

    def get_training_stats(self) -> TrainingStats:
        """A reading."""
        return {
            "current_epoch": self.current_epoch,
            "accumulation_stats": self.accumulator.get_accumulation_stats(),
            "training_history": list(self.training_history),
        }

    def _expect(self, loader: Iterable[Any], epochs: int) -> None:
        """Spread a progressive doubling over the run. Its first `train` decides."""
        state, config = self.accumulator.state, self.config
        if config.mode is AccumulationMode.PROGRESSIVE and state.expected_updates is None:
            micro_batches = micro_batches_of(loader, config.effective_batch_size)
            if micro_batches:
                state.expected_updates = expected_updates(config, micro_batches * epochs)

    def _saves_after(self, epoch: int) -> bool:
        return epoch % self.config.checkpoint_frequency == 0

    @property
    def _writes(self) -> bool:
        """Whether this process is the one that writes checkpoints."""
        return self.setup.peers is None or distributed.get_rank() == 0

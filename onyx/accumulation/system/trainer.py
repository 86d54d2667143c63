"""Document 004's trainer: epochs over a loader, validation and checkpoints."""

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
from onyx.accumulation.system.batch import (
    at_least_one_sample,
    checked_batch,
    evaluating,
    joined_shape,
    micro_batches_of,
)
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
    history_entry,
)
from onyx.accumulation.system.saved_state import restore
from onyx.accumulation.system.setup import SetupHolder
from onyx.accumulation.system.window_policy import expected_updates

logger = logging.getLogger(__name__)


class GradientAccumulationTrainer(SetupHolder):
    """Trains a model on batches of (data, target) whose first dimension is samples.

    A batch larger than the micro-batch is cut, and each part is weighted by its samples. So an update is that of the
    samples of the window as one batch, however they were cut.
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
        """Set the model to train: see `GradientAccumulator.setup_training`. The criterion returns a mean or a sum."""
        self.accumulator.setup_training(
            model, optimizer, criterion, scheduler, device, precision=precision, scaler=scaler
        )
        self._setup = self.accumulator.setup

    def train_step(self, data: Tensor, target: Tensor) -> StepResult:
        """Train on one batch of a loader, cut into as many micro-batches as its size needs."""
        setup, accumulator = self.setup, self.accumulator
        data, target = checked_batch(data, target, setup.device)
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
                # Without loss_scaling every batch of the loader counts once, however it is cut.
                weight = size if self.config.loss_scaling else size / samples
                result = accumulator.accumulate_gradients(loss, weight=weight, reduction=setup.reduction)
            total = total + result["loss"] * (size / samples if setup.reduction == "mean" else 1.0)
            ended = ended or result["should_optimize"]
            shapes.append(getattr(output, "shape", None))
            done += size
        return {
            "loss": total,
            "output_shape": joined_shape(shapes),
            "target_shape": target.shape,
            "accumulation_step": result["accumulation_step"],
            "should_optimize": ended,
            "effective_batch_size": result["effective_batch_size"],
        }

    def train_epoch(self, train_loader: Iterable[Any]) -> EpochResult:
        """Train on every batch of the loader. The last window is applied even if it is short."""
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
            "epoch_loss": read(total) / at_least_one_sample(samples),
            "num_batches": batches,
            "optimization_steps": state.optimizer_steps - before,
            "effective_batch_size": self.accumulator.get_accumulation_stats()["effective_batch_size"],
        }

    def validate_epoch(self, val_loader: Iterable[Any]) -> ValidationResult:
        """The mean loss over the loader. Trains nothing; every module keeps its mode."""
        setup = self.setup
        batches, samples = 0, 0
        total: Number = 0.0
        with evaluating(setup.model), torch.no_grad():
            for batch_data, batch_target in val_loader:
                data, target = checked_batch(batch_data, batch_target, setup.device)
                size = next_part(len(data), self.accumulator.micro_batch_size)
                for x, y in zip(data.split(size), target.split(size), strict=True):
                    with setup.autocast():
                        loss = settle(setup.criterion(setup.model(x), y))
                    total = total + loss * (len(x) if setup.reduction == "mean" else 1.0)
                batches, samples = batches + 1, samples + len(data)
        return {"val_loss": read(total) / at_least_one_sample(samples), "num_batches": batches}

    def train(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        num_epochs: int = 10,
        save_dir: str | os.PathLike[str] | None = "checkpoints",
    ) -> list[HistoryEntry]:
        """Train `num_epochs` epochs. After `load_checkpoint`: the rest of the run that saved it.

        Checkpoints are `save_dir`/epoch_<n>; None saves none. If anything else stands at one of these paths, this is a
        FileExistsError before the first epoch.
        """
        last = self._first_epoch + check.whole("num_epochs", num_epochs)
        self._expect_updates(train_loader, num_epochs)
        if save_dir is not None and self._is_writer:
            for epoch in filter(self._saves_after, range(self.current_epoch + 1, last + 1)):
                check_replaceable(Path(save_dir) / f"epoch_{epoch}")  # now, not after hours of training
        while self.current_epoch < last:
            entry = history_entry(self.current_epoch + 1, self.train_epoch(train_loader))
            self.current_epoch += 1
            if val_loader is not None and self.current_epoch % self.config.validation_frequency == 0:
                entry["val_loss"] = self.validate_epoch(val_loader)["val_loss"]
            self.training_history.append(entry)
            logger.info("epoch %d of %d: %s", self.current_epoch, last, entry)
            if save_dir is not None and self._is_writer and self._saves_after(self.current_epoch):
                self.save_checkpoint(Path(save_dir) / f"epoch_{self.current_epoch}", self.current_epoch)
        self._first_epoch = self.current_epoch
        return self.training_history

    def save_checkpoint(self, path: str | os.PathLike[str], epoch: int) -> None:
        """Save all that training depends on into a directory at `path`.

        It replaces an earlier checkpoint or an empty directory. Anything else is a FileExistsError and stays.
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
        """Continue from a checkpoint. One that is damaged, or of another model, is a ValueError."""
        setup, accumulator = self.setup, self.accumulator
        checkpoint = read_checkpoint(path)
        accumulation = checkpoint.accumulation if self.config.restore_accumulation_state else None
        # All checks come before the first change.
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
        """Epochs finished, statistics of the accumulator, history."""
        return {
            "current_epoch": self.current_epoch,
            "accumulation_stats": self.accumulator.get_accumulation_stats(),
            "training_history": list(self.training_history),
        }

    def _expect_updates(self, loader: Iterable[Any], epochs: int) -> None:
        """Spread the doubling of progressive mode over the run. The first `train` sets this."""
        state, config = self.accumulator.state, self.config
        if config.mode is AccumulationMode.PROGRESSIVE and state.expected_updates is None:
            micro_batches = micro_batches_of(loader, config.effective_batch_size)
            if micro_batches:
                state.expected_updates = expected_updates(config, micro_batches * epochs)

    def _saves_after(self, epoch: int) -> bool:
        return epoch % self.config.checkpoint_frequency == 0

    @property
    def _is_writer(self) -> bool:
        """Whether this rank writes the checkpoints."""
        return self.setup.peers is None or distributed.get_rank() == 0

"""Document 003's accumulator: it owns an optimizer, and only counts where a Lightning trainer accumulates."""

import logging
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from onyx.accumulation import check, ddp
from onyx.accumulation.boundary import close
from onyx.accumulation.loss_scaling import scaling_for
from onyx.accumulation.metrics import MetricsTracker
from onyx.accumulation.window import Window

__all__ = ["AccumulationStats", "GradientAccumulator", "MetricsTracker"]

logger = logging.getLogger(__name__)


@dataclass
class AccumulationStats:
    """Counters of an accumulator at one moment."""

    total_steps: int
    """Micro-batches taken in all."""

    optimizer_steps: int
    """Updates made. Skipped ones do not count."""

    current_accumulation: int
    """Micro-batches in the open window."""

    effective_batch_size: int
    """Samples of a full window, per process."""

    is_accumulating: bool
    """Whether a window is open."""

    last_grad_norm: float
    """The last finite norm of the gradients, before clipping."""

    def __str__(self) -> str:
        state = f"{self.current_accumulation} in the open window" if self.is_accumulating else "no window open"
        return (
            f"{self.optimizer_steps} updates from {self.total_steps} micro-batches, {state}; "
            f"effective batch {self.effective_batch_size}, gradient norm {self.last_grad_norm:.3e}"
        )


class LightningTrainer:
    """A Lightning trainer that accumulates by itself, so that this module must not accumulate too."""

    def __init__(self, trainer: Any, steps: int) -> None:
        self._trainer = trainer
        self.steps = steps
        """Batches it accumulates per update."""

    @property
    def global_step(self) -> int:
        """Updates it has made."""
        return int(self._trainer.global_step)


def lightning_trainer(trainer: Any) -> LightningTrainer | None:
    """The trainer, if it is a Lightning one that accumulates more than one batch; recognised by its class name."""
    if trainer is None or "Trainer" not in type(trainer).__name__:
        return None
    batches = getattr(trainer, "accumulate_grad_batches", 1)
    if isinstance(batches, dict):
        batches = batches.get(0, 1)
    if not isinstance(batches, int) or batches <= 1:
        return None
    return LightningTrainer(trainer, batches)


class GradientAccumulator:
    """Accumulates micro-batches into exact updates of one optimizer."""

    def __init__(
        self,
        optimizer: Optimizer,
        accumulation_steps: int = 1,
        max_grad_norm: float | None = 1.0,
        scaler: Any = None,
        batch_size: int = 1,
        trainer: Any = None,
    ) -> None:
        self._lightning = lightning_trainer(trainer)
        if self._lightning and accumulation_steps > 1:
            raise ValueError(_conflict_message(accumulation_steps, self._lightning.steps))
        self.accumulation_steps = check.whole("accumulation_steps", accumulation_steps)
        self.max_grad_norm = _norm_limit(max_grad_norm)
        self.batch_size = check.whole("batch_size", batch_size)
        self.optimizer = optimizer
        self.scaler = scaler
        self._scaling = scaling_for(scaler)
        self._window: Window | None = None
        self.total_steps = 0
        self.skipped_steps = 0
        self.last_grad_norm = 0.0
        self._updates = 0

    def accumulate(self, loss: Tensor, model: Module, is_final_batch: bool = False) -> bool:
        """Run backward for a micro-batch. True when the optimizer stepped.

        `is_final_batch` ends the window here; the mean is then over the micro-batches it has.
        """
        self.total_steps += 1
        if self._lightning:
            return True
        if self._window is None:
            self._window = Window(length=self.accumulation_steps)
        contribution = self._window.take(loss)
        self._scaling.scale(contribution).backward()
        self._window.unsynced = ddp.skips_sync(model)
        return self._step(model) if self._window.full or is_final_batch else False

    def micro_batch(self, model: Module, is_final_batch: bool = False) -> AbstractContextManager[None]:
        """A context for forward and `accumulate`: under DDP, ranks then exchange gradients once per window."""
        last = self._window.next_is_last if self._window else self.accumulation_steps == 1
        return ddp.sync_if(model, last or is_final_batch)

    def _step(self, model: Module) -> bool:
        assert self._window is not None  # noqa: S101 - `accumulate` has opened it
        if self._window.unsynced:
            ddp.exchange_now(model)
        update = close(self._window, self.optimizer, max_norm=self.max_grad_norm, scaling=self._scaling)
        self._window = None
        if math.isfinite(update.norm):
            self.last_grad_norm = update.norm
        if update.stepped:
            self._updates += 1
        else:
            self.skipped_steps += 1
            logger.warning("update skipped: the gradients are %s", update.skipped)
        return update.stepped

    @property
    def is_lightning_managed(self) -> bool:
        """Whether a Lightning trainer accumulates, so that this object only counts."""
        return self._lightning is not None

    @property
    def optimizer_steps(self) -> int:
        """Updates made: Lightning's where it manages them."""
        return self._lightning.global_step if self._lightning else self._updates

    @property
    def effective_step(self) -> int:
        """The step to log metrics at."""
        return self.optimizer_steps

    @property
    def effective_batch_size(self) -> int:
        """Samples of a full window, per process."""
        steps = self._lightning.steps if self._lightning else self.accumulation_steps
        return self.batch_size * steps

    @property
    def accumulation_counter(self) -> int:
        """Micro-batches in the open window."""
        return self._window.count if self._window else 0

    @property
    def stats(self) -> AccumulationStats:
        """The counters now."""
        return AccumulationStats(
            total_steps=self.total_steps,
            optimizer_steps=self.optimizer_steps,
            current_accumulation=self.accumulation_counter,
            effective_batch_size=self.effective_batch_size,
            is_accumulating=self._window is not None,
            last_grad_norm=self.last_grad_norm,
        )

    def reset_epoch(self) -> None:
        """Begin an epoch with no window open. Totals stay."""
        if self._window is not None:
            logger.warning(
                "dropping an open window of %d micro-batches: pass is_final_batch=True on an epoch's last batch",
                self.accumulation_counter,
            )
            self.optimizer.zero_grad(set_to_none=True)
            self._window = None

    def state_dict(self) -> dict[str, Any]:
        """The counters. The gradients of an open window belong to the model and are not saved."""
        return {
            "total_steps": self.total_steps,
            "optimizer_steps": self.optimizer_steps,
            "accumulation_counter": self.accumulation_counter,
            "last_grad_norm": self.last_grad_norm,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load saved counters. A window that was open when they were saved starts afresh."""
        missing = {"total_steps", "optimizer_steps", "accumulation_counter", "last_grad_norm"} - set(state_dict)
        if missing:
            raise ValueError(f"the saved state lacks {', '.join(sorted(missing))}")
        total = check.whole("total_steps", state_dict["total_steps"], at_least=0)
        updates = check.whole("optimizer_steps", state_dict["optimizer_steps"], at_least=0)
        counter = check.whole("accumulation_counter", state_dict["accumulation_counter"], at_least=0)
        norm = check.number("last_grad_norm", state_dict["last_grad_norm"], at_least=0)
        self.total_steps, self._updates, self.last_grad_norm = total, updates, norm
        self._window = None
        self.optimizer.zero_grad(set_to_none=True)
        if counter:
            logger.warning("the saved window had %d micro-batches: it starts afresh", counter)


def _norm_limit(limit: float | None) -> float | None:
    if limit is None:
        return None
    try:
        return check.positive("max_grad_norm", limit)
    except ValueError:
        raise ValueError(f"max_grad_norm must be > 0 or None, got {limit}") from None


def _conflict_message(manual: int, lightning: int) -> str:
    return (
        "Gradient accumulation conflict detected!\n"
        f"  Manual accumulation_steps: {manual}\n"
        f"  Lightning accumulate_grad_batches: {lightning}\n"
        "\n"
        "Resolution options:\n"
        "  1. Set accumulation_steps=1 (let Lightning manage)\n"
        "  2. Set trainer.accumulate_grad_batches=1 (use manual)\n"
        "  3. Remove trainer parameter (disable Lightning)"
    )

"""Document 004's accumulator: its modes and strategies, applied to the window and the boundary of the core."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from onyx.accumulation import ddp
from onyx.accumulation.boundary import Update
from onyx.accumulation.gauge import Gauge, read_gauge
from onyx.accumulation.lazy_scalar import Number, read, settle
from onyx.accumulation.loss_scaling import Scaling, Unscaled, scaling_for
from onyx.accumulation.precision import Precision
from onyx.accumulation.system.batch import check_loss
from onyx.accumulation.system.config import AccumulationMode, GradientAccumulationConfig
from onyx.accumulation.system.micro_batch import MicroBatchChooser, MicroBatchSizer, halve_under_pressure
from onyx.accumulation.system.noise import NoiseMeter, NoiseScale
from onyx.accumulation.system.results import AccumulationStats, MicroBatchResult
from onyx.accumulation.system.saved_state import SavedState, put_gradients, restore
from onyx.accumulation.system.setup import SetupHolder, prepare, scaler_for
from onyx.accumulation.system.state import AccumulationState
from onyx.accumulation.system.statefile import read_state, write_state
from onyx.accumulation.system.window_policy import close_window, log_progress, window_length
from onyx.accumulation.window import Window

logger = logging.getLogger(__name__)


class GradientAccumulator(SetupHolder):
    """Turns micro-batches into exact updates of the model that `setup_training` was given."""

    def __init__(
        self,
        config: GradientAccumulationConfig,
        *,
        gauge: Callable[[torch.device], Gauge] = read_gauge,
        choose_micro_batch: MicroBatchChooser = halve_under_pressure,
    ) -> None:
        if not isinstance(config, GradientAccumulationConfig):
            raise ValueError(f"config must be a GradientAccumulationConfig, got {config!r}")  # noqa: TRY004
        self.config = config
        self.state = AccumulationState(micro_batch_size=config.effective_batch_size)
        self.noise = NoiseScale()
        self.scaler: Any = None
        """The loss scaler, if any. If you assign another one, the next window uses it."""
        self._sizer = MicroBatchSizer(gauge, choose_micro_batch)
        self._meter: NoiseMeter | None = None
        self._scaling: Scaling = Unscaled()
        self._scale, self._unsynced = 1.0, False

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
        """Set the model to train, on `device` or where it is. The scheduler steps once per update.

        `precision` is that of `autocast` around forward; float16 needs a loss scaler. `scaler` is the caller's own.
        """
        setup = prepare(self.config, model, optimizer, criterion, scheduler, device, precision)
        self.scaler = scaler_for(self.config, setup, scaler)
        if self._meter is not None:
            self._meter.remove()
        adaptive = self.config.mode is AccumulationMode.ADAPTIVE and self.config.adaptive_scaling
        self._meter = NoiseMeter(optimizer, self.noise, setup.peers) if adaptive else None
        self._setup = setup
        self.state.window = None

    def reset(self) -> None:
        """Start afresh: no window, all counters 0, no readings."""
        self.drop_window()
        self.state = AccumulationState(micro_batch_size=self.config.effective_batch_size)
        self.noise.load_state_dict(NoiseScale().state_dict())

    @contextmanager
    def micro_batch(self, batch_size: int | None = None) -> Iterator[None]:
        """A context for forward and `accumulate_gradients`: under DDP, ranks then exchange gradients once per window.

        It opens the window, so inside `micro_batch_size` is final. `batch_size` is that of the larger batch that this
        micro-batch is cut from, if any.
        """
        window = self._open(batch_size)
        with ddp.sync_if(self.setup.model, window.next_is_last):
            yield

    def accumulate_gradients(
        self,
        loss: Tensor,
        backward: bool = True,
        *,
        weight: Number | None = None,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> MicroBatchResult:
        """Take a micro-batch. The last one of a window updates the model.

        `loss` is the mean over `weight` samples or tokens, or with `reduction="sum"` their sum. Without weights all
        micro-batches of a window count alike. `backward=False`: the caller has run `loss.backward()` already.
        """
        check_loss(loss, backward, weight, reduction)
        window, state = self._open(), self.state
        if window.count and state.backward_by_caller == backward:
            raise ValueError("run backward for all micro-batches of a window, or let the accumulator: do not mix")
        if backward:
            self._backward(window.take(loss, weight, reduction))
        else:
            window.take_undivided(loss)
        state.backward_by_caller = not backward
        state.total_steps += 1
        self._unsynced = ddp.skips_sync(self.setup.model)
        if self._meter is not None:
            self._meter.count_micro_batch(window, weight, scale=self._scale if backward else 1.0)
        result = self._result(window, settle(loss))
        if window.full:
            self._close()
        log_progress(self.config, state, window, result["loss"])
        return result

    def flush(self) -> bool:
        """Apply an open window with the micro-batches it has. True when the optimizer stepped."""
        return self._close().stepped if self.state.accumulation_step else False

    def drop_window(self) -> None:
        """Drop an open window and its gradients."""
        self.state.window = None
        self.setup.optimizer.zero_grad(set_to_none=True)
        if self._meter is not None:
            self._meter.drop_window()

    @property
    def micro_batch_size(self) -> int:
        """Samples that a micro-batch should have now."""
        return self.state.micro_batch_size

    @property
    def window_length(self) -> int:
        """Micro-batches of the open window, or of the next one."""
        window = self.state.window
        return window.length if window else window_length(self.config, self.state, self.noise)

    def get_accumulation_stats(self) -> AccumulationStats:
        """The statistics now. Waits for the device if a window is open."""
        state, norms = self.state, self.state.gradient_norms
        return {
            "current_step": state.total_steps,
            "accumulation_step": state.accumulation_step,
            "accumulation_steps": self.window_length,
            "effective_batch_size": state.micro_batch_size * self.window_length,
            "accumulated_loss": read(state.accumulated_loss),
            "average_gradient_norm": sum(norms) / len(norms) if norms else 0.0,
            "total_optimizer_steps": state.optimizer_steps,
            "nan_detected": state.nan_detected,
            "overflow_detected": state.overflow_detected,
            "memory_usage": state.memory_usage[-1] if state.memory_usage else 0.0,
        }

    def _open(self, batch_size: int | None = None) -> Window:
        """The open window, or a new one, whose length is fixed here."""
        setup, state = self.setup, self.state
        if state.window is None:
            before = state.micro_batch_size
            self._sizer.measure(self.config, state, setup.device, setup.peers)
            # Twice the samples halve the variance; the true gradient stays the same.
            self.noise.variance *= before / state.micro_batch_size
            self._use_scaler()
            length = window_length(self.config, state, self.noise, batch_size)
            total = None if self.config.loss_scaling else 1.0  # a sum is divided by 1
            state.window = Window(length=length, weight=total, peers=setup.peers)
        return state.window

    def _use_scaler(self) -> None:
        self._scaling = scaling_for(self.scaler)
        self._scale = self._scaling.factor() if self._meter is not None else 1.0  # only the meter needs it

    def _backward(self, contribution: Tensor) -> None:
        try:
            self._scaling.scale(contribution).backward()
        except BaseException:
            self.drop_window()  # its gradients may be incomplete: no update may use them
            raise

    def _result(self, window: Window, loss: Number) -> MicroBatchResult:
        ended = window.full
        return {
            "loss": read(loss) if ended else loss,
            "accumulated_loss": read(window.losses) if ended else window.losses,
            "accumulation_step": window.count,
            "should_optimize": ended,
            "effective_batch_size": self.state.micro_batch_size * window.length,
        }

    def _close(self) -> Update:
        return close_window(self.setup, self.config, self.state, self._scaling, self._meter, exchange=self._unsynced)

    def state_dict(self) -> dict[str, Any]:
        """All that the next micro-batch depends on, including the gradients of an open window."""
        saved = SavedState.of(self.config, self.state, self.noise, self._meter, self.scaler, self.setup.bare_model)
        return saved.state_dict()

    def check_state_dict(self, saved: Mapping[str, Any]) -> SavedState:
        """The checked state; a state that does not fit is a ValueError. Changes nothing."""
        return SavedState.checked(saved, self.config, self.setup.bare_model, self.scaler, self.setup.peers)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. The config stays this accumulator's own."""
        setup, checked = self.setup, self.check_state_dict(saved)
        restore(self.scaler, checked.scaler, "scaler")
        self.drop_window()
        self.noise.load_state_dict(checked.noise)
        self._use_scaler()
        if checked.state.window is not None:
            self._unsynced = setup.peers is not None  # averaging once more changes nothing
            put_gradients(setup.bare_model, checked.gradients)
            if self._meter is not None and checked.meter is not None:
                self._meter.load_state_dict(checked.meter)
            # A GradScaler creates its scale with its first loss, and the loaded window may be flushed without another.
            self._scaling.scale(torch.zeros((), device=setup.device))
        self.state = checked.state

    def save_accumulation_state(self, path: str | os.PathLike[str]) -> None:
        """Save `state_dict` as one safetensors file with the JSON values in its metadata."""
        write_state(path, self.state_dict())
        logger.info("accumulation state saved to %s", path)

    def load_accumulation_state(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved file. A damaged or foreign one is a ValueError."""
        self.load_state_dict(read_state(path, self.setup.device))
        logger.info("accumulation state loaded from %s", path)

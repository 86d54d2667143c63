"""Document 002's accumulator: one call per micro-batch; the last call of a window steps the optimizer."""

import logging
import math
import time
from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from onyx.accumulation import check, ddp
from onyx.accumulation.ads.config import GradientAccumulationConfig
from onyx.accumulation.ads.mixed import MixedPrecision
from onyx.accumulation.boundary import Update, close
from onyx.accumulation.gauge import own_bytes, peak_bytes
from onyx.accumulation.lazy_scalar import Number, read
from onyx.accumulation.loss_scaling import Scaling, scaling_for
from onyx.accumulation.window import Window

logger = logging.getLogger("onyx.server.features.ads.gradient_accumulation")

HISTORY = 1000
"""How many entries each history keeps."""

MEMORY_AGE = 0.05
"""Seconds for which a reading of memory is reused: a system call per micro-batch would slow small ones down."""

_GB = 1e9


class GradientAccumulator:
    """Accumulates micro-batches into exact updates of the optimizer that each call is given."""

    def __init__(self, config: GradientAccumulationConfig) -> None:
        self._config = _checked(config)
        self.current_step = 0
        """Updates made. Skipped ones are in `skipped_steps`."""
        self.skipped_steps = 0
        self.gradient_norms: deque[float] = deque(maxlen=HISTORY)
        self.memory_usage: deque[float] = deque(maxlen=HISTORY)
        self.accumulation_times: deque[float] = deque(maxlen=HISTORY)
        self.memory_peaks: deque[float] = deque(maxlen=HISTORY)
        self.mixed = MixedPrecision(config)
        self._window: Window | None = None
        self._last = Window(length=config.accumulation_steps)
        self._optimizer: Optimizer | None = None
        self._memory = (-math.inf, 0.0)
        self._phases: dict[str, deque[float]] = {}

    @property
    def config(self) -> GradientAccumulationConfig:
        return self._config

    @config.setter
    def config(self, config: GradientAccumulationConfig) -> None:
        """Another config takes effect when the next window opens."""
        self._config = self.mixed.config = _checked(config)

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """The accumulator's own scaler, disabled where the loss needs no scaling."""
        return self.mixed.scaler

    @property
    def accumulation_step(self) -> int:
        """Micro-batches of the open window, or of the last one until the next call."""
        return self._last.count

    @property
    def total_loss(self) -> Number:
        """Sum of the losses of the window."""
        return self._last.losses

    @property
    def total_samples(self) -> Number:
        """Weight of the window; without weights, how many micro-batches it has."""
        return self._last.taken if self._last.weighted else int(self._last.count)

    @property
    def open_window(self) -> Window | None:
        """The window that still takes micro-batches, if there is one."""
        return self._window

    def accumulate_gradients(
        self,
        loss: Tensor,
        model: Module,
        optimizer: Optimizer,
        scaler: Any = None,
        *,
        weight: Number | None = None,
    ) -> dict[str, Any]:
        """Run backward for a micro-batch whose loss is a mean over `weight`; at the end of the window update."""
        started = time.perf_counter()
        window = self._open(model)
        contribution = window.take(loss, weight)
        scaling = self._scaling(scaler)
        scaling.scale(contribution).backward()
        window.unsynced = ddp.skips_sync(model)
        self._optimizer = optimizer
        backward_time = self._phase("backward", time.perf_counter() - started)

        update = self._close(model, optimizer, scaling) if window.full else None
        return self._report(started, backward_time, model, scaling, update)

    def flush(self, model: Module, optimizer: Optimizer, scaler: Any = None) -> dict[str, Any]:
        """Apply an open window with the micro-batches it has. Returns the same report as `accumulate_gradients`."""
        started = time.perf_counter()
        scaling = self._scaling(scaler)
        update = self._close(model, optimizer, scaling) if self._window else None
        return self._report(started, 0.0, model, scaling, update)

    def micro_batch(self, model: Module) -> AbstractContextManager[None]:
        """A context for forward and `accumulate_gradients`: under DDP, ranks then exchange once per window."""
        last = self.should_update() or not self.config.sync_gradients
        return ddp.sync_if(model, last)

    def should_update(self) -> bool:
        """Whether the next micro-batch ends its window."""
        return self._window.next_is_last if self._window else self._next_length() == 1

    def should_accumulate(self) -> bool:
        """Whether the next micro-batch leaves its window open."""
        return not self.should_update()

    def reset_accumulation(self) -> None:
        """Drop the open window and its gradients."""
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)
        self._window = None
        self._last = Window(length=self.config.accumulation_steps)

    def get_effective_batch_size(self, actual: int) -> int:
        """Samples of a full window whose micro-batches have `actual` samples."""
        return check.whole("actual batch size", actual) * self.config.accumulation_steps

    def get_learning_rate_scale(self) -> float:
        """1/N, the document's factor."""
        return 1.0 / self.config.accumulation_steps

    def get_accumulation_stats(self) -> dict[str, Any]:
        """All counters and histories, as Python numbers."""
        stats = {
            "accumulation_steps": self.config.accumulation_steps,
            "current_step": self.current_step,
            "total_loss": read(self.total_loss),
            "total_samples": read(self.total_samples) if self._last.weighted else self.total_samples,
            "avg_gradient_norm": _mean(self.gradient_norms),
            "avg_memory_usage_gb": _mean(self.memory_usage),
            "avg_accumulation_time": _mean(self.accumulation_times),
            "gradient_norms": list(self.gradient_norms),
            "memory_usage": list(self.memory_usage),
            "accumulation_times": list(self.accumulation_times),
            "mixed_precision_enabled": self.mixed.enabled,
            "mp_stats": self.mixed.stats(),
        }
        if self.config.profile_accumulation:
            stats["phase_times"] = {name: _mean(times) for name, times in self._phases.items()}
        return stats

    def state_dict(self) -> dict[str, Any]:
        """The counters and the scale. The gradients of an open window belong to the model and are not saved."""
        return {
            "current_step": self.current_step,
            "skipped_steps": self.skipped_steps,
            "accumulation_step": self._window.count if self._window else 0,
            "gradient_norms": list(self.gradient_norms),
            "mixed": self.mixed.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state. A window that was open when it was saved starts afresh."""
        self.current_step = check.whole("current_step", state["current_step"], at_least=0)
        self.skipped_steps = check.whole("skipped_steps", state["skipped_steps"], at_least=0)
        self.gradient_norms = deque(state["gradient_norms"], maxlen=HISTORY)
        self.mixed.load_state_dict(state["mixed"])
        if state["accumulation_step"]:
            logger.warning("the saved window had %d micro-batches: it starts afresh", state["accumulation_step"])
        self.reset_accumulation()

    def _next_length(self) -> int:
        return self.config.schedule().length(self.current_step)

    def _open(self, model: Module) -> Window:
        if self._window is None:
            self._window = Window(length=self._next_length(), peers=ddp.peers_of(model))
            self._last = self._window
        return self._window

    def _close(self, model: Module, optimizer: Optimizer, scaling: Scaling) -> Update:
        assert self._window is not None  # noqa: S101 - the callers have opened it
        started = time.perf_counter()
        if self._window.unsynced:
            ddp.exchange_now(model)
        update = close(self._window, optimizer, max_norm=self.config.gradient_clipping, scaling=scaling)
        self._last.losses = read(self._last.losses)
        self._last.taken = read(self._last.taken)
        self._window = None
        if update.stepped:
            self.current_step += 1
            self.gradient_norms.append(update.norm)
        else:
            self.skipped_steps += 1
        self.mixed.observe(update, loss=self._last.losses)
        self._phase("optimizer", time.perf_counter() - started)
        self.memory_peaks.append(peak_bytes(_device_of(model)) / _GB)
        if self.config.log_accumulation:
            logger.info(
                "update %d: %d micro-batches, loss %.4f, gradient norm %.4g%s",
                self.current_step,
                self._last.count,
                self._last.losses / max(self._last.count, 1),
                update.norm,
                f", skipped ({update.skipped})" if update.skipped else "",
            )
        return update

    def _report(
        self, started: float, backward_time: float, model: Module, scaling: Scaling, update: Update | None
    ) -> dict[str, Any]:
        memory_used = self._memory_used(model)
        elapsed = time.perf_counter() - started
        self.accumulation_times.append(elapsed)
        scale = self.mixed.scale(scaling, fresh=update is not None)
        active = self.mixed.uses(scaling)
        self.mixed.seconds += elapsed if active else 0.0
        return {
            "should_update": update is not None,
            "accumulation_step": self.accumulation_step,
            "total_loss": self.total_loss,
            "total_samples": self.total_samples,
            "accumulation_time": elapsed,
            "memory_used": memory_used,
            "backward_stats": {"backward_time": backward_time, "scaler_scale": scale}
            | (self.mixed.overflow_flags(update) if active else {}),
            "optimizer_stats": self._optimizer_stats(update, scale),
            "mp_stats": self.mixed.stats() if active else {},
        }

    def _memory_used(self, model: Module) -> float:
        now = time.perf_counter()
        read_at, memory_used = self._memory
        if now - read_at > MEMORY_AGE:
            memory_used = own_bytes(_device_of(model)) / _GB
            self._memory = (now, memory_used)
        if self.config.log_memory_usage:
            self.memory_usage.append(memory_used)
            logger.debug("memory in use: %.3f GB", memory_used)
        return memory_used

    def _scaling(self, scaler: Any) -> Scaling:
        return self.mixed.scaling if scaler is None else scaling_for(scaler)

    def _optimizer_stats(self, update: Update | None, scale: float) -> dict[str, Any]:
        if update is None:
            return {}
        stats = {"optimizer_time": self._phases["optimizer"][-1], "scaler_scale": scale}
        return stats if update.stepped else stats | {"skipped": True}

    def _phase(self, name: str, seconds: float) -> float:
        self._phases.setdefault(name, deque(maxlen=HISTORY)).append(seconds)
        return seconds


def _checked(config: GradientAccumulationConfig) -> GradientAccumulationConfig:
    if not isinstance(config, GradientAccumulationConfig):
        raise ValueError(f"config must be a GradientAccumulationConfig, got {config!r}")  # noqa: TRY004
    return config


def _device_of(model: Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values) if values else 0.0

"""How long a window is, by mode, and what happens at its end around the boundary of the core."""

import logging
import math
from typing import Any

from onyx.accumulation.boundary import Update, close
from onyx.accumulation.ddp import exchange_now
from onyx.accumulation.lazy_scalar import Number, read
from onyx.accumulation.loss_scaling import Scaling, Unscaled
from onyx.accumulation.schedule import Constant, Progressive, Schedule, doubling
from onyx.accumulation.system.config import AccumulationMode, GradientAccumulationConfig
from onyx.accumulation.system.micro_batch import parts
from onyx.accumulation.system.noise import Adaptive, NoiseMeter, NoiseScale
from onyx.accumulation.system.setup import Setup
from onyx.accumulation.system.state import AccumulationState
from onyx.accumulation.system.strategy import Chain
from onyx.accumulation.window import Window

logger = logging.getLogger(__name__)


def close_window(
    setup: Setup,
    config: GradientAccumulationConfig,
    state: AccumulationState,
    scaling: Scaling,
    meter: NoiseMeter | None,
    *,
    exchange: bool,
) -> Update:
    """Turn the open window into an update or a skip, and count it. `exchange`: DDP has not exchanged its gradients."""
    window, state.window = state.window, None
    assert window is not None  # noqa: S101
    if exchange:
        exchange_now(setup.model)
    if setup.left_out is not None:
        setup.left_out.reshape(setup.optimizer)  # before unscaling: left-out parameters must not count as overflow
    if not config.loss_scaling and window.weighted and not read(window.taken):
        window.weight = 0.0  # a sum over no samples is no update
    scaling = Unscaled() if state.backward_by_caller else scaling
    stages = [stage for stage in (meter, setup.strategy) if stage is not None]
    update = close(
        window,
        setup.optimizer,
        max_norm=config.clipping_norm if config.gradient_clipping else None,
        scaling=scaling,
        strategy=Chain(*stages) if stages else None,
        skip_not_finite=config.nan_handling or _scales(scaling),
    )
    if meter is not None:
        meter.end_window(summed=not config.loss_scaling)
    state.record(update, scaled=_scales(scaling))
    if update.stepped and setup.scheduler is not None:
        setup.scheduler.step()
    if not update.stepped or not math.isfinite(update.norm):
        what = f"skipped ({update.skipped})" if update.skipped else "applied as it is (not finite)"
        logger.warning("the update after micro-batch %d was %s", state.total_steps, what)
    return update


def _scales(scaling: Scaling) -> bool:
    """Whether the loss is scaled, so that overflows are normal and skipped. A disabled GradScaler does not scale."""
    scaler: Any = getattr(scaling, "scaler", None)
    return scaler is not None and bool(getattr(scaler, "is_enabled", lambda: True)())


def window_length(
    config: GradientAccumulationConfig, state: AccumulationState, noise: NoiseScale, batch_size: int | None = None
) -> int:
    """The length of the window that opens now.

    In adaptive mode `target_batch_size` limits it. In all other modes a window keeps its samples when the micro-batch
    shrinks: N micro-batches of the full size become more, smaller ones. `batch_size` is that of the loader batch that
    the trainer cuts; without it the caller makes micro-batches of the current size.
    """
    micro, largest = state.micro_batch_size, config.effective_batch_size
    if config.mode is AccumulationMode.ADAPTIVE:
        most = math.ceil(config.target_batch_size / micro)
        if not config.adaptive_scaling:
            return most
        start = config.accumulation_steps if micro == largest else most
        return Adaptive(noise, start, most).length(state.optimizer_steps)
    steps = _schedule(config, state.expected_updates).length(state.optimizer_steps)
    if batch_size is None:
        return math.ceil(steps * largest / micro)
    return math.ceil(steps * parts(batch_size, micro) / parts(batch_size, largest))


def expected_updates(config: GradientAccumulationConfig, micro_batches: int) -> int:
    """How many updates progressive doubling makes of `micro_batches`, if each stage lasts equally many updates."""
    stages = doubling(config.accumulation_steps)
    return max(1, round(micro_batches * len(stages) / sum(stages)))


def _schedule(config: GradientAccumulationConfig, updates: int | None) -> Schedule:
    if config.mode is not AccumulationMode.PROGRESSIVE:
        return Constant(config.accumulation_steps)
    if config.accumulation_schedule:
        return Progressive(config.accumulation_schedule)
    return Progressive(doubling(config.accumulation_steps), updates)


def log_progress(config: GradientAccumulationConfig, state: AccumulationState, window: Window, loss: Number) -> None:
    """Log a line every `logging_frequency` micro-batches. The loss is read only if INFO is logged."""
    if state.total_steps % config.logging_frequency or not logger.isEnabledFor(logging.INFO):
        return
    logger.info(
        "micro-batch %d: loss %.4f, %d of %d in its window, %d updates, %d skipped, memory %.0f %% full",
        state.total_steps,
        read(loss),
        window.count,
        window.length,
        state.optimizer_steps,
        state.skipped_steps,
        100 * state.memory_usage[-1] if state.memory_usage else 0.0,
    )

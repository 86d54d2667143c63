"""A log line now and then."""

import logging

from onyx.accumulation.number import Number, read
from onyx.accumulation.system.config import GradientAccumulationConfig
from onyx.accumulation.system.state import AccumulationState
from onyx.accumulation.window import Window

logger = logging.getLogger(__name__)


def tell(config: GradientAccumulationConfig, state: AccumulationState, window: Window, loss: Number) -> None:
    """Every `logging_frequency` micro-batches. Reads the loss only if somebody listens."""
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

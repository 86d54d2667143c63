"""How many micro-batches the next window takes."""

import math

from onyx.accumulation.noise import Adaptive, NoiseScale
from onyx.accumulation.schedule import Constant, Progressive, Schedule, doubling
from onyx.accumulation.system.config import AccumulationMode, GradientAccumulationConfig
from onyx.accumulation.system.micro_batch import parts
from onyx.accumulation.system.state import AccumulationState


def window_length(
    config: GradientAccumulationConfig, state: AccumulationState, noise: NoiseScale, batch_size: int | None = None
) -> int:
    """The length of the window that opens now.

    In adaptive mode it aims at `target_batch_size`. In all others the window keeps its samples when the micro-batch
    shrinks: whoever asked for N micro-batches gets the samples of those N, in more pieces. `batch_size` is that of
    the loader batch that will be cut; without one the caller's micro-batches follow the current size themselves.
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
    """How many updates a doubling makes of that many micro-batches, each stage having an equal part of them."""
    stages = doubling(config.accumulation_steps)
    return max(1, round(micro_batches * len(stages) / sum(stages)))


def _schedule(config: GradientAccumulationConfig, updates: int | None) -> Schedule:
    if config.mode is not AccumulationMode.PROGRESSIVE:
        return Constant(config.accumulation_steps)
    if config.accumulation_schedule:
        return Progressive(config.accumulation_schedule)
    return Progressive(doubling(config.accumulation_steps), updates)

"""Document 004: modes, strategies, a trainer and saved state, over the core of `onyx.accumulation`."""

from onyx.accumulation.system.accumulator import GradientAccumulator
from onyx.accumulation.system.config import AccumulationMode, AccumulationStrategy, GradientAccumulationConfig
from onyx.accumulation.system.state import AccumulationState
from onyx.accumulation.system.trainer import GradientAccumulationTrainer

__all__ = [
    "AccumulationMode",
    "AccumulationState",
    "AccumulationStrategy",
    "GradientAccumulationConfig",
    "GradientAccumulationTrainer",
    "GradientAccumulator",
]

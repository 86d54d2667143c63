"""The import path that the documentation promises. The code lives in `onyx.accumulation.ads`.

Here the accumulator that plans meets the planner: neither room imports the other.
"""

from onyx.accumulation import ads
from onyx.accumulation.ads import (
    GradientAccumulationAPI,
    GradientAccumulationConfig,
    GradientAccumulationTrainer,
    GradientAccumulator,
    adjust_learning_rate,
    calculate_accumulation_steps,
    calculate_effective_batch_size,
    gradient_accumulation_context,
    integrate_with_dataparallel,
    integrate_with_distributed,
)
from onyx.memory.adapters import DevicePlanner

__all__ = [
    "AdaptiveGradientAccumulator",
    "GradientAccumulationAPI",
    "GradientAccumulationConfig",
    "GradientAccumulationTrainer",
    "GradientAccumulator",
    "adjust_learning_rate",
    "calculate_accumulation_steps",
    "calculate_effective_batch_size",
    "gradient_accumulation_context",
    "integrate_with_dataparallel",
    "integrate_with_distributed",
]


class AdaptiveGradientAccumulator(ads.AdaptiveGradientAccumulator):
    """Picks the batch size that fits, then the N that reaches `target_batch_size`."""

    planner = DevicePlanner()

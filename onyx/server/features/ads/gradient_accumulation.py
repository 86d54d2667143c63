"""The documented import path of the accumulation library; the code is in `onyx.accumulation.ads`.

It joins the adaptive accumulator with the planner of `onyx.memory`: the library itself imports nothing but torch.
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
    """Plans the batch size that fits into memory, then the N that reaches `target_batch_size`."""

    planner = DevicePlanner()

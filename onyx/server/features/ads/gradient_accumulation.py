"""The import path that the documentation promises. The code lives in `onyx.accumulation.ads`."""

from onyx.accumulation.ads import (
    AdaptiveGradientAccumulator,
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

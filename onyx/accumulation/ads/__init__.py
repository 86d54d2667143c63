"""Document 002's accumulator, adaptive accumulator and trainer."""

from onyx.accumulation.ads.accumulator import GradientAccumulator
from onyx.accumulation.ads.adaptive import AdaptiveGradientAccumulator
from onyx.accumulation.ads.config import GradientAccumulationConfig
from onyx.accumulation.ads.integrate import (
    gradient_accumulation_context,
    integrate_with_dataparallel,
    integrate_with_distributed,
)
from onyx.accumulation.ads.registry import GradientAccumulationAPI
from onyx.accumulation.ads.trainer import GradientAccumulationTrainer
from onyx.accumulation.rates import (
    adjust_learning_rate,
    calculate_accumulation_steps,
    calculate_effective_batch_size,
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

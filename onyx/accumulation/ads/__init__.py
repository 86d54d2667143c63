"""Document 002's accumulator, adaptive accumulator and trainer, as `docs/ads.md` describes them.

It imports `onyx.accumulation` only. Users import it as `onyx.server.features.ads.gradient_accumulation`, which also
gives the adaptive accumulator the memory planner. Start with `accumulator.py`; its settings are in `config.py`.
"""

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

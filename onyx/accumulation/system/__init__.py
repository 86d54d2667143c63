"""Document 004: modes, strategies, a trainer and saved state, as `docs/system.md` describes them.

It imports `onyx.accumulation` and `onyx.fs` only. Start with `accumulator.py` (one call per micro-batch) or
`trainer.py` (epochs, checkpoints). `config.py` has the settings; `window_policy.py` decides how long a window is and
what happens at its end.
"""

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

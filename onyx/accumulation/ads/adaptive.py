"""An accumulator that takes its batch size from a memory planner and computes N from it."""

import logging
import math
from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from torch.nn import Module

from onyx.accumulation import check
from onyx.accumulation.ads.accumulator import GradientAccumulator
from onyx.accumulation.ads.config import GradientAccumulationConfig

logger = logging.getLogger("onyx.server.features.ads.gradient_accumulation")

DEFAULT_BATCH_SIZE = 8
"""The batch size without a planner and without `target_batch_size`."""


class BatchPlanner(Protocol):
    """Computes how many samples a device takes at once. `onyx.memory.adapters` has one."""

    def gpus(self) -> list[int]:
        """Ids of the GPUs of this host."""
        ...

    def batch_size(self, model: Module, gpu_ids: Sequence[int] | None, config: GradientAccumulationConfig) -> int:
        """Samples per device within the memory limits of the config. `gpu_ids=None` plans for the CPU."""
        ...


class FixedBatchSize:
    """Used without a memory planner: `target_batch_size`, or the default."""

    def gpus(self) -> list[int]:
        return list(range(torch.accelerator.device_count()))

    def batch_size(self, model: Module, gpu_ids: Sequence[int] | None, config: GradientAccumulationConfig) -> int:
        return config.target_batch_size or DEFAULT_BATCH_SIZE


class AdaptiveGradientAccumulator(GradientAccumulator):
    """Chooses the batch size that fits into memory, then the N that reaches `target_batch_size`."""

    planner: ClassVar[BatchPlanner] = FixedBatchSize()

    def calculate_optimal_batch_size(self, model: Module, gpu_ids: Sequence[int]) -> int:
        """Samples per GPU, within the memory limits of the config."""
        if not self.config.auto_adjust_batch_size:
            return self.config.target_batch_size or DEFAULT_BATCH_SIZE
        known = self.planner.gpus()
        unknown = [gpu for gpu in gpu_ids if gpu not in known]
        if unknown or not gpu_ids:
            missing = ", ".join(map(str, unknown)) or "an empty list"
            present = ", ".join(map(str, known)) or "none"
            raise ValueError(f"No valid GPUs found for {missing}; this host has: {present}")
        return self.planner.batch_size(model, gpu_ids, self.config)

    def adjust_accumulation_steps(self, target: int, actual: int) -> int:
        """The N with which micro-batches of `actual` samples reach `target`."""
        check.whole("target batch size", target)
        if actual <= 0:
            return self.config.accumulation_steps
        return max(1, math.ceil(target / actual))

    def update_config(self, model: Module, gpu_ids: Sequence[int]) -> None:
        """Choose batch size and N for this model on these GPUs. They apply from the next window on."""
        if self.config.auto_adjust_batch_size and not self.planner.gpus():
            logger.warning("this host has no GPUs: planning for the CPU instead of GPUs %s", list(gpu_ids))
            batch_size = self.planner.batch_size(model, None, self.config)
        else:
            batch_size = self.calculate_optimal_batch_size(model, gpu_ids)
        if self.config.target_batch_size is not None:
            self.config.accumulation_steps = self.adjust_accumulation_steps(self.config.target_batch_size, batch_size)
        self.config.effective_batch_size = batch_size * self.config.accumulation_steps

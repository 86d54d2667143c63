"""The planner behind the interface of the documented accumulators, which do not import this room."""

from collections.abc import Sequence
from typing import Protocol

from torch.nn import Module

from onyx.memory.devices.cpu import cpu_devices
from onyx.memory.devices.gpus import list_gpus, select
from onyx.memory.planning.module_batch import plan_batch


class Bounds(Protocol):
    """The fields of an accumulator's config that bound memory."""

    target_batch_size: int | None
    max_memory_usage: float
    memory_safety_margin: float


class DevicePlanner:
    """Batch sizes for the devices of this host; for AdaptiveGradientAccumulator."""

    def gpus(self) -> list[int]:
        """The ids of the GPUs there are."""
        return [gpu.index for gpu in list_gpus()]

    def batch_size(self, model: Module, gpu_ids: Sequence[int] | None, config: Bounds) -> int:
        """Samples that fit on each of these GPUs, or without any on the CPU."""
        devices = select(list_gpus(), list(gpu_ids)) if gpu_ids is not None else cpu_devices(1)
        return plan_batch(
            model,
            devices,
            target=config.target_batch_size,
            max_memory_usage=config.max_memory_usage,
            memory_safety_margin=config.memory_safety_margin,
        )

"""The planner in the shapes that the documented accumulators ask for. They know these shapes, not this room."""

from collections.abc import Sequence
from typing import Protocol

from torch.nn import Module

from onyx.memory.batch import infer_sample, module_footprint, plan_batch
from onyx.memory.cpu import cpu_devices
from onyx.memory.gpus import list_gpus, select


class Bounds(Protocol):
    """What a config says about memory."""

    target_batch_size: int | None
    max_memory_usage: float
    memory_safety_margin: float


class Reading(Protocol):
    """How full a device is, in bytes."""

    @property
    def own(self) -> int: ...

    @property
    def used(self) -> int: ...

    @property
    def total(self) -> int: ...


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


class PlannedMicroBatch:
    """The micro-batch that keeps a device below a threshold, known before it is tried; for document 004's modes."""

    def __init__(self, model: Module, sample_shape: Sequence[int] | None = None) -> None:
        self._footprint = module_footprint(model, infer_sample(model, sample_shape))

    def __call__(self, *, current: int, largest: int, gauge: Reading, threshold: float) -> int:
        """From 1 to `largest`: what is left of the device below the threshold, beside what others use of it."""
        room = threshold * gauge.total - (gauge.used - gauge.own)
        return max(1, min(largest, int(self._footprint.most_samples(room, 1))))

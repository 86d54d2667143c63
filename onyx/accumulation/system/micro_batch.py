"""How many samples run at once, by what the device's memory says."""

import logging
import math
from collections.abc import Callable
from typing import Protocol

import torch

from onyx.accumulation import check
from onyx.accumulation.ddp import DdpPeers
from onyx.accumulation.gauge import Gauge
from onyx.accumulation.system.config import GradientAccumulationConfig
from onyx.accumulation.system.state import AccumulationState

logger = logging.getLogger(__name__)


class MicroBatchChooser(Protocol):
    """Chooses the micro-batch of the window that opens. A planner can take this place."""

    def __call__(self, *, current: int, largest: int, gauge: Gauge, threshold: float) -> int:
        """A number of samples from 1 to `largest`."""
        ...


def halve_under_pressure(*, current: int, largest: int, gauge: Gauge, threshold: float) -> int:
    """Half above the threshold, and back again when there is room.

    Twice the micro-batch uses at most twice the memory, so below half the threshold it cannot cross the threshold.
    """
    if gauge.pressure > threshold:
        return max(1, current // 2)
    if gauge.pressure < threshold / 2:
        return min(largest, current * 2)
    return current


class MicroBatchSizer:
    """Reads the memory when a window opens, and sizes its micro-batches where the config asks for that."""

    def __init__(self, gauge: Callable[[torch.device], Gauge], choose: MicroBatchChooser) -> None:
        self._gauge = gauge
        self._choose = choose
        self._read_at = -math.inf

    def measure(
        self,
        config: GradientAccumulationConfig,
        state: AccumulationState,
        device: torch.device,
        peers: DdpPeers | None = None,
    ) -> None:
        """Update the state's readings and micro-batch. Where nothing depends on a reading, it waits for a log line."""
        fresh = 0 <= state.total_steps - self._read_at < config.logging_frequency
        if not config.memory_monitoring or (fresh and not config.sizes_micro_batches):
            return
        gauge = self._gauge(device)
        state.memory_usage.append(gauge.pressure)
        self._read_at = state.total_steps
        if not config.sizes_micro_batches:
            return
        current, largest = state.micro_batch_size, config.effective_batch_size
        chosen = self._choose(current=current, largest=largest, gauge=gauge, threshold=config.memory_threshold)
        if check.whole("a chosen micro-batch", chosen) > largest:
            raise ValueError(f"a chosen micro-batch must be <= effective_batch_size = {largest}, got {chosen}")
        state.micro_batch_size = peers.least(chosen) if peers else chosen
        if state.micro_batch_size != current:
            logger.info(
                "micro-batch %d -> %d: the device is %.0f %% full",
                current,
                state.micro_batch_size,
                100 * gauge.pressure,
            )
        if state.micro_batch_size < current and device.type != "cpu":
            # What the allocator keeps of the larger micro-batch would count as pressure, and shrink it again.
            torch.accelerator.empty_cache()


def parts(samples: int, micro_batch: int) -> int:
    """Into how many micro-batches that many samples are cut."""
    return math.ceil(samples / micro_batch)


def next_part(samples: int, micro_batch: int) -> int:
    """The size of the next micro-batch when `samples` are left: none above `micro_batch`, all nearly equal."""
    return math.ceil(samples / parts(samples, micro_batch))

"""How many samples run at once, by the memory pressure of the device."""

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
    """Chooses the micro-batch size of the window that opens. A memory planner can be passed instead of the default."""

    def __call__(self, *, current: int, largest: int, gauge: Gauge, threshold: float) -> int:
        """A number of samples from 1 to `largest`."""
        ...


def halve_under_pressure(*, current: int, largest: int, gauge: Gauge, threshold: float) -> int:
    """Half the size above the threshold, twice the size below half the threshold.

    Twice the micro-batch uses at most twice the memory, so doubling there cannot cross the threshold.
    """
    if gauge.pressure > threshold:
        return max(1, current // 2)
    if gauge.pressure < threshold / 2:
        return min(largest, current * 2)
    return current


class MicroBatchSizer:
    """Reads the memory when a window opens, and sizes its micro-batches if the config says so."""

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
        """Record a reading and set the micro-batch. If nothing depends on it, it is taken once per log line."""
        recent = 0 <= state.total_steps - self._read_at < config.logging_frequency
        if not config.memory_monitoring or (recent and not config.sizes_micro_batches):
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
            # The cached memory of the larger micro-batch would count as pressure and shrink the micro-batch again.
            torch.accelerator.empty_cache()


def parts(samples: int, micro_batch: int) -> int:
    """How many micro-batches `samples` are cut into."""
    return math.ceil(samples / micro_batch)


def next_part(samples: int, micro_batch: int) -> int:
    """Size of the next micro-batch when `samples` are left: at most `micro_batch`, all nearly equal."""
    return math.ceil(samples / parts(samples, micro_batch))

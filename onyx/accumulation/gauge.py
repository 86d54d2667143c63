"""How full the memory of a device is."""

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import psutil


@dataclass(frozen=True)
class Gauge:
    """One reading, in bytes."""

    own: int
    """Held by this process: live tensors on an accelerator, resident memory on the CPU."""

    used: int
    """In use on the device, by all processes."""

    total: int
    """Memory of the device."""

    @property
    def pressure(self) -> float:
        """The used share of the whole device, 0 to 1."""
        return self.used / self.total


def read_gauge(device: torch.device) -> Gauge:
    """A reading of `device` now."""
    if device.type == "cpu":
        import psutil

        machine = psutil.virtual_memory()
        return Gauge(own_bytes(device), machine.total - machine.available, machine.total)
    free, total = torch.accelerator.get_memory_info(device)
    return Gauge(own_bytes(device), total - free, total)


def own_bytes(device: torch.device) -> int:
    """Bytes that this process holds on `device`. Cheap enough for every micro-batch."""
    if device.type == "cpu":
        return int(_process(os.getpid()).memory_info().rss)
    return int(torch.accelerator.memory_allocated(device))


def peak_bytes(device: torch.device) -> int:
    """The most this process has held on `device`; on the CPU what it holds now, since psutil reports no peak."""
    if device.type == "cpu":
        return own_bytes(device)
    return int(torch.accelerator.max_memory_allocated(device))


# Creating psutil.Process costs as much as ten readings. The pid is the key because a fork has another one.
@functools.lru_cache(maxsize=1)
def _process(pid: int) -> "psutil.Process":
    import psutil

    return psutil.Process(pid)

"""CPU memory and threads of this host that training jobs do not need."""

from collections.abc import Iterable

from onyx.memory.devices.cpu import cpu_budget, cpu_cores, cpu_free
from onyx.settings import Settings

CPU = "cpu:"
"""Prefix of the names of devices that are CPU slices."""

RESERVED = 0.1
"""Part of the free memory that stays free."""

_NO_LIMIT = 1 << 62


def spare_memory(settings: Settings, lent: Iterable[str]) -> int:
    """Free bytes, without what the jobs on lent CPU slices may still take; negative when that is more.

    A lent slice counts in full, although a part of it is already in use: too little rather than too much.
    """
    budget = cpu_budget(settings.cpu_memory) // settings.cpu_devices
    held = budget * sum(name.startswith(CPU) for name in lent)
    return int(cpu_free(_NO_LIMIT) * (1 - RESERVED)) - held


def spare_threads(settings: Settings, lent: Iterable[str]) -> int:
    """Threads that slow down no training job: the cores of a slice while no device is lent, one otherwise."""
    return 1 if any(True for _ in lent) else max(1, cpu_cores() // settings.cpu_devices)

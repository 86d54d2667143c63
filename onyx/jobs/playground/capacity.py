"""Memory of this host that no training may come to need."""

from collections.abc import Iterable

from onyx.memory.devices.cpu import cpu_budget, cpu_cores, cpu_free
from onyx.settings import Settings

CPU = "cpu:"
"""How the names of devices begin that are slices of the CPU."""

LEFT_ALONE = 0.1
"""Part of the free memory that nobody is offered."""

_NO_LIMIT = 1 << 62


def spare_memory(settings: Settings, lent: Iterable[str]) -> int:
    """Bytes that are free now, less all that the trainings on lent CPU slices may still take; below 0 when short.

    A lent slice counts whole, although some of it is in use and not free any more: the answer errs on its side.
    """
    budget = cpu_budget(settings.cpu_memory) // settings.cpu_devices
    held = budget * sum(name.startswith(CPU) for name in lent)
    return int(cpu_free(_NO_LIMIT) * (1 - LEFT_ALONE)) - held


def spare_threads(settings: Settings, lent: Iterable[str]) -> int:
    """Threads that disturb no training: a slice's cores while nothing is lent, one otherwise."""
    return 1 if any(True for _ in lent) else max(1, cpu_cores() // settings.cpu_devices)

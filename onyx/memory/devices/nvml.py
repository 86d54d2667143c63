"""The cards as NVML, the NVIDIA driver's own library, lists them."""

import logging
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import psutil

from onyx.memory.devices.device import Device

logger = logging.getLogger(__name__)


def nvml_gpus() -> list[Device] | None:
    """Every card in PCI bus order, then the MIG instances. None where NVML is missing or does not start."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("NVML does not start: %s", error, extra={"action": "nvml_missing"})
        return None
    try:
        return _every_card(pynvml)
    except pynvml.NVMLError as error:
        logger.warning("NVML does not list its cards: %s", error, extra={"action": "nvml_failed"})
        return None
    finally:
        # An NVML that stays initialised keeps the driver's device files open, which forbids forking.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _every_card(nvml: ModuleType) -> list[Device]:
    count = nvml.nvmlDeviceGetCount()
    cards: list[Device] = []
    instances: list[Any] = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found = _mig_instances(nvml, handle)
            instances += found
            cards.append(_device(nvml, handle, index, memory_may_be_shared=not found))
        except (nvml.NVMLError, ValueError) as error:
            # A card that fell off the bus is left out: the others keep their index.
            logger.warning("GPU %d cannot be read: %s", index, error, extra={"action": "gpu_unreadable"})
    for index, handle in enumerate(instances, start=count):
        with suppress(nvml.NVMLError, ValueError):
            cards.append(_device(nvml, handle, index, memory_may_be_shared=False))
    return cards


def _mig_instances(nvml: ModuleType, handle: Any) -> list[Any]:
    """The handles of a card's MIG instances: none where MIG is off or unknown to the card."""
    enabled = _reading(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    if not enabled:
        return []
    instances = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError):  # an empty place
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
    return instances


def _device(nvml: ModuleType, handle: Any, index: int, *, memory_may_be_shared: bool) -> Device:
    total, free = _memory(nvml, handle, memory_may_be_shared)
    milliwatts = _reading(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return Device(
        kind="cuda",
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory_total=total,
        memory_free=free,
        utilization=_reading(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        temperature=_reading(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        power_draw=None if milliwatts is None else milliwatts / 1000,
    )


def _memory(nvml: ModuleType, handle: Any, may_be_shared: bool) -> tuple[int, int]:
    """Total and free bytes."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError_NotSupported:
        if not may_be_shared:
            raise
        # A chip without memory of its own (Jetson, GB10) works in the host's.
        host = psutil.virtual_memory()
        return host.total, host.available
    return memory.total, memory.free


def _reading(nvml: ModuleType, read: Callable[[], float]) -> float | None:
    """What the card measures, or None where it cannot."""
    try:
        return read()
    except nvml.NVMLError:
        return None

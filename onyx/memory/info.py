"""GPUs as the answers of the API show them."""

from collections.abc import Iterable

from onyx.memory.device import Device

MB = 2**20  # nvidia-smi's unit


def gpu_info(devices: Iterable[Device]) -> dict[str, dict[str, int | float | str | None]]:
    """
    What is known of each GPU, under "gpu_<id>". Slices of the CPU are left out.

    Memory is in MB, utilizations are from 0 to 100; a reading that the card does not give is None.
    """
    return {f"gpu_{device.index}": _entry(device) for device in devices if device.kind == "cuda"}


def _entry(device: Device) -> dict[str, int | float | str | None]:
    return {
        "id": device.index,
        "name": device.name,
        "memory_total": round(device.memory_total / MB, 2),
        "memory_used": round(device.memory_used / MB, 2),
        "memory_free": round(device.memory_free / MB, 2),
        "memory_utilization": round(100 * device.memory_used / device.memory_total, 2),
        "gpu_utilization": device.utilization,
        "temperature": device.temperature,
        "power_draw": device.power_draw,
    }

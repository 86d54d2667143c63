"""The devices of this host, as the store lends them and as ranks use them."""

from dataclasses import dataclass

from onyx.jobs.models import DeviceNeed, RunnerDevice
from onyx.memory.devices.cpu import cpu_devices
from onyx.memory.devices.device import Device
from onyx.memory.devices.gpus import list_gpus_async
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec


@dataclass(frozen=True)
class Offered:
    """A device under both of its names."""

    lent: RunnerDevice
    """As the store knows it."""

    here: Device
    """As this host does."""


async def offer_devices(settings: Settings) -> tuple[Offered, ...]:
    """All devices of this host: its GPUs, or without any the CPU in slices."""
    found = await list_gpus_async() or cpu_devices(settings.cpu_devices, settings.cpu_memory)
    return tuple(
        Offered(RunnerDevice(name=device.uuid or device.label, kind=_kind(device)), device) for device in found
    )


def choose_devices(offered: tuple[Offered, ...], spec: JobSpec) -> tuple[Offered, ...]:
    """The devices that a job's plan is made for; fewer than it asks for when there are not enough."""
    if spec.gpu_ids is None:
        return offered[: spec.devices]
    return tuple(each for each in offered if each.here.kind == "cuda" and each.here.index in spec.gpu_ids)


def needs_of(chosen: tuple[Offered, ...], spec: JobSpec) -> list[DeviceNeed]:
    """What the store must find free: any device of the kind, or the very ones that the user named."""
    return [DeviceNeed(kind=each.lent.kind, name=each.lent.name if spec.gpu_ids else None) for each in chosen]


def _kind(device: Device) -> str:
    """Devices that give the same bits and take the same plan."""
    speed = f"/{device.cores}" if device.kind == "cpu" else ""
    return f"{device.name}/{device.memory_total}{speed}"[:255]

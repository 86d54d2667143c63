"""The devices of this host that its runner offers to the store, and which of them a job gets."""

from dataclasses import dataclass

from onyx.jobs.models import DeviceNeed, RunnerDevice
from onyx.memory.devices.cpu import cpu_devices
from onyx.memory.devices.device import Device
from onyx.memory.devices.gpus import list_gpus_async
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec


@dataclass(frozen=True)
class Offered:
    """A device in both of its forms."""

    lent: RunnerDevice
    """As the store knows it."""

    here: Device
    """As this host sees it."""


async def offer_devices(settings: Settings) -> tuple[Offered, ...]:
    """The GPUs of this host, or slices of its CPU if it has none."""
    found = await list_gpus_async() or cpu_devices(settings.cpu_devices, settings.cpu_memory)
    return tuple(
        Offered(RunnerDevice(name=device.uuid or device.label, kind=_kind(device)), device) for device in found
    )


def choose_devices(offered: tuple[Offered, ...], spec: JobSpec) -> tuple[Offered, ...]:
    """The devices that a job's plan is made for; fewer than the job wants if the host has too few."""
    if spec.gpu_ids is None:
        return offered[: spec.devices]
    return tuple(each for each in offered if each.here.kind == "cuda" and each.here.index in spec.gpu_ids)


def needs_of(chosen: tuple[Offered, ...], spec: JobSpec) -> list[DeviceNeed]:
    """What must be free before the job is claimed: any device of the kind, or exactly those that the user named."""
    return [DeviceNeed(kind=each.lent.kind, name=each.lent.name if spec.gpu_ids else None) for each in chosen]


def _kind(device: Device) -> str:
    """Devices of one kind give the same bits and take the same plan."""
    speed = f"/{device.cores}" if device.kind == "cpu" else ""
    return f"{device.name}/{device.memory_total}{speed}"[:255]

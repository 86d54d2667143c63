"""
The GPUs this process may use.

A GPU's id is the index that torch and CUDA give it here: its place among those that CUDA_VISIBLE_DEVICES
leaves. Where this process has started CUDA, the order is CUDA's. Elsewhere it is NVML's, by PCI bus, which is
CUDA's too where all cards are of one model, or with CUDA_DEVICE_ORDER=PCI_BUS_ID. A process that is started for
certain cards should be given their uuids, which mean the same card in any order.
"""

import asyncio
import functools
import itertools
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import ModuleType

from onyx.memory.devices.device import Device
from onyx.memory.devices.nvidia_smi import KILL_SECONDS, smi_gpus
from onyx.memory.devices.nvml import nvml_gpus

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0

_lock = threading.Lock()
_query_under_way: Future[list[Device]] | None = None


def list_gpus(timeout: float = TIMEOUT_SECONDS) -> list[Device]:
    """The visible GPUs by id. With no driver, or a hung or a broken one: none, and never an exception."""
    try:
        return list(_query(timeout).result(timeout + KILL_SECONDS))
    except TimeoutError:
        return _hung(timeout)


async def list_gpus_async(timeout: float = TIMEOUT_SECONDS) -> list[Device]:  # noqa: ASYNC109 (nvidia-smi's own limit)
    """As list_gpus, without blocking the event loop."""
    try:
        query = asyncio.wrap_future(_query(timeout))
        return list(await asyncio.wait_for(query, timeout + KILL_SECONDS))
    except TimeoutError:
        return _hung(timeout)


def select(devices: Sequence[Device], ids: Sequence[int]) -> list[Device]:
    """The devices with these ids, in the order of the ids."""
    there = {device.index: device for device in devices}
    known = f"there are {', '.join(map(str, sorted(there)))}" if there else "there are none"
    if not ids:
        raise ValueError(f"No valid GPUs found: no id was given; {known}")
    unknown = [gpu for gpu in ids if isinstance(gpu, bool) or gpu not in there]
    if unknown:
        raise ValueError(f"No valid GPUs found for the ids {', '.join(map(repr, unknown))}: {known}")
    if len(set(ids)) < len(ids):
        raise ValueError(f"No valid GPUs found for the ids {', '.join(map(str, ids))}: an id is there twice")
    return [there[gpu] for gpu in ids]


def visible(setting: str | None, cards: Sequence[Device]) -> list[Device]:
    """
    The cards that CUDA_VISIBLE_DEVICES leaves, numbered anew from 0.

    CUDA's rules: the first entry that names no card ends the list, a card named twice empties it, and the
    first entry decides whether all are numbers or all uuids, which may be shortened while they mean one card.
    """
    if setting is None:
        # Their own index, not a new one: a card that cannot be read must not shift the others.
        return [card for card in cards if not _is_mig(card)]
    names = _names(setting)
    if len(set(names)) < len(names):
        return []
    found = list(itertools.takewhile(bool, (_named(name, cards) for name in names)))
    if len(set(found)) < len(found):  # the same uuid, shortened in two ways
        return []
    return [replace(card, index=index) for index, card in enumerate(found) if card is not None]


def _names(setting: str) -> list[str] | list[int]:
    """The entries up to the first that is neither a number nor a uuid, whichever the first one is."""
    entries = setting.split(",")
    kind = setting[:4]
    if kind in ("GPU-", "MIG-"):
        return list(itertools.takewhile(lambda entry: entry.startswith(kind), entries))
    # CUDA reads numbers as C does: what follows the digits is ignored.
    matches = (re.match(r"\s*([+-]?\d+)", entry, re.ASCII) for entry in entries)
    numbers = (int(match[1]) if match else -1 for match in matches)
    return list(itertools.takewhile(lambda number: number >= 0, numbers))


def _named(name: str | int, cards: Sequence[Device]) -> Device | None:
    """The one card with this number or with a uuid that begins so."""
    if isinstance(name, int):
        matches = [card for card in cards if card.index == name and not _is_mig(card)]
    else:
        matches = [card for card in cards if card.uuid is not None and card.uuid.startswith(name)]
    return matches[0] if len(matches) == 1 else None


def _is_mig(card: Device) -> bool:
    return card.uuid is not None and card.uuid.startswith("MIG-")


def _query(timeout: float) -> Future[list[Device]]:
    """The query under way, or a new one: callers share it, so a hung driver holds one thread and not many."""
    global _query_under_way
    with _lock:
        if _query_under_way is None or _query_under_way.done():
            query: Future[list[Device]] = Future()
            query.set_running_or_notify_cancel()  # a caller that gives up must not cancel it for the others
            threading.Thread(target=_answer, args=(query, timeout), name="onyx-gpus", daemon=True).start()
            _query_under_way = query
        return _query_under_way


def _answer(query: Future[list[Device]], timeout: float) -> None:
    try:
        query.set_result(_read(timeout))
    except Exception as error:  # a broken driver may fail in any way, and no job stops for that
        logger.warning("the GPUs cannot be read: %s", error, exc_info=True, extra={"action": "gpus_failed"})
        query.set_result([])


def _hung(timeout: float) -> list[Device]:
    logger.warning("the NVIDIA driver gave no answer in %g s", timeout, extra={"action": "gpus_timeout"})
    return []


def _read(timeout: float) -> list[Device]:
    cards = nvml_gpus()
    if cards is None:
        cards = smi_gpus(timeout)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return _as_torch_counts(torch, cards)
    devices = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), cards)
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        _warn_of_order(tuple(device.name for device in devices))
    return devices


@functools.cache  # once for each set of cards
def _warn_of_order(names: tuple[str, ...]) -> None:
    if len(set(names)) > 1:
        logger.warning(
            "CUDA may number these GPUs in another order (%s): set CUDA_DEVICE_ORDER=PCI_BUS_ID",
            ", ".join(names),
            extra={"action": "gpu_order_unknown"},
        )


def _as_torch_counts(torch: ModuleType, cards: Sequence[Device]) -> list[Device]:
    """The cards as CUDA numbers them in this process, with the memory that CUDA itself reports."""
    by_uuid = {card.uuid: card for card in cards}
    devices = (_torch_device(torch, index, by_uuid) for index in range(torch.cuda.device_count()))
    return [device for device in devices if device is not None]


def _torch_device(torch: ModuleType, index: int, by_uuid: Mapping[str | None, Device]) -> Device | None:
    properties = torch.cuda.get_device_properties(index)
    uuid = f"GPU-{properties.uuid}"
    card = by_uuid.get(uuid) or by_uuid.get(f"MIG-{properties.uuid}")
    # mem_get_info would make a context where there is none, at the cost of hundreds of megabytes.
    if torch._C._cuda_hasPrimaryContext(index):
        free, total = torch.cuda.mem_get_info(index)
    elif card is not None:
        free, total = card.memory_free, properties.total_memory
    else:
        logger.warning("cuda:%d: its free memory is unknown", index, extra={"action": "gpu_unreadable"})
        return None
    free = min(free, total)
    if card is not None:
        return replace(card, index=index, memory_total=total, memory_free=free)
    name = properties.name
    return Device(kind="cuda", index=index, name=name, uuid=uuid, memory_total=total, memory_free=free)


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

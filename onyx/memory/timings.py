"""How long micro-batches took on such a device: stored by ranks, read by later plans. Needs no torch."""

import hashlib
import json
import socket
from typing import Any

from onyx.memory.cache import Cache
from onyx.memory.device import Device
from onyx.memory.footprints import footprint_key
from onyx.memory.recipe import Recipe
from onyx.memory.timing import Timing


def timing_key(config: Any, recipe: Recipe, device: Device, *, compiled: bool = False) -> str:
    """A name for all that a timing depends on. It goes with the plan, so that a rank need not make it again."""
    key = footprint_key(config, recipe, device.kind)
    key.pop("beyond_window")
    if recipe.method == "lora":  # a plan for nobody's job yet does not know which layers will be adapted
        key["lora"] = {"r": recipe.lora.r, "dropout": recipe.lora.dropout}
    key |= {"name": device.name, "threads": device.cores}
    if compiled:
        key["compiled"] = True
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()


def own_key(key: str, label: str, uuid: str | None) -> str:
    """The same for one device of this host and not for others of its kind: one may be throttled, or somebody's too."""
    return f"{key}@{uuid or f'{socket.gethostname()}/{label}'}"


def stored_timing(key: str) -> Timing | None:
    """What a rank measured, if one did."""
    stored = Cache("timings").read({"timing": key})
    if stored is None:
        return None
    try:
        return Timing.from_json(stored)
    except ValueError:
        return None


def store_timing(key: str, timing: Timing) -> None:
    """For later plans."""
    Cache("timings").write({"timing": key}, timing.to_json())

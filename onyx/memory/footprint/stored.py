"""Footprints and overheads that are kept across processes: each is computed or measured once per machine.

Needs torch only for what is not stored yet.
"""

import platform
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from onyx.memory.devices.device import Device, Kind
from onyx.memory.footprint.footprint import Footprint
from onyx.memory.footprint.json_cache import Cache, versions
from onyx.memory.footprint.overhead import ASSUMED_CUDA, Overhead
from onyx.memory.recipe import Recipe

LEFT_OUT_OF_KEY = (
    "_name_or_path",
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
    "id2label",
    "label2id",
)
"""Fields of a config that change no allocation, or that the key holds in another form."""


def footprint_of(config: Any, recipe: Recipe, kind: Kind) -> Footprint:
    """The footprint of a recipe whose config is loaded, on a device of that kind."""
    from onyx.memory.footprint.model_builder import check_length

    check_length(config, recipe)
    cache, key = Cache("footprints"), footprint_key(config, recipe, kind)
    stored = cache.read(key)
    if stored is not None:
        with suppress(ValueError):  # not ours: computed again, and overwritten
            return Footprint.from_json(stored)
    from onyx.memory.footprint.estimate import estimate

    found = estimate(config, recipe, kind)
    cache.write(key, found.to_json())
    return found


def footprint_key(config: Any, recipe: Recipe, kind: Kind) -> dict[str, Any]:
    """All that a footprint depends on. max_length counts only by whether it reaches the model's sliding window."""
    from onyx.memory.footprint.model_builder import beyond_window, is_causal

    content = {name: value for name, value in config.to_dict().items() if name not in LEFT_OUT_OF_KEY}
    return {
        "config": content,
        "labels": getattr(config, "num_labels", None),
        "attention": getattr(config, "_attn_implementation", None),
        "causal": is_causal(config, recipe),
        "method": recipe.method,
        "lora": asdict(recipe.lora) if recipe.method == "lora" else None,
        "precision": recipe.precision,
        "gradient_checkpointing": recipe.gradient_checkpointing,
        "objective": recipe.objective,
        "beyond_window": beyond_window(config, recipe.max_length),
        "kind": kind,
        "versions": versions(),
    }


def overhead_of(device: Device) -> Overhead:
    """The overhead of a process on that device. A CPU's is measured here when it is not stored; a card's by ranks."""
    cache, key = Cache("overheads"), _overhead_key(device.kind, device.name)
    stored = cache.read(key)
    if stored is not None:
        with suppress(ValueError):
            return Overhead.from_json(stored)
    if device.kind == "cuda":
        return ASSUMED_CUDA
    from onyx.memory.footprint.calibrate import measure_cpu

    found = measure_cpu()
    cache.write(key, found.to_json())
    return found


def store_overhead(name: str, overhead: Overhead) -> None:
    """Keep what a rank measured on a card of that name, for later plans."""
    Cache("overheads").write(_overhead_key("cuda", name), overhead.to_json())


def _overhead_key(kind: Kind, name: str) -> dict[str, Any]:
    where = {"machine": platform.node(), "kernel": platform.release()} if kind == "cpu" else {"name": name}
    return {"kind": kind, "versions": versions(), **where}

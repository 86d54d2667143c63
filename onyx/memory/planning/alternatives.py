"""What would fit instead: computed with the same planner, one change at a time, then together."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from onyx.memory.devices.device import Device
from onyx.memory.errors import Alternative, PlanError
from onyx.memory.planning.device_fit import fit_device
from onyx.memory.planning.request import PlanRequest
from onyx.memory.recipe import Lora, Recipe

SHORTEST = 16
"""No shorter samples are proposed."""


def alternatives(config: Any, request: PlanRequest, device: Device) -> list[Alternative]:
    """Changes that make one sample fit on the device."""
    recipe = request.recipe
    single = list(_changes(recipe))
    found = [each for change, changed in single if (each := _try(config, request, device, change, changed))]
    shorter = _shorter(config, request, device, recipe)
    if shorter is not None:
        found.append(shorter)
    if found or len(single) < 2:
        return found
    both = single[-1][1].changed(method=single[0][1].method, lora=single[0][1].lora)
    change = " + ".join(name for name, _ in single)
    together = _try(config, request, device, change, both)
    if together is not None:
        return [together]
    last = _shorter(config, request, device, both)
    return [replace(last, change=f"{change} + {last.change}")] if last is not None else []


def _changes(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    if recipe.method == "full":
        lora = recipe.changed(method="lora", lora=Lora())
        yield lora.method_label, lora
    if not recipe.gradient_checkpointing:
        yield "gradient checkpointing", recipe.changed(gradient_checkpointing=True)


def _try(config: Any, request: PlanRequest, device: Device, change: str, recipe: Recipe) -> Alternative | None:
    with contextlib.suppress(PlanError):  # this model does not support the change
        fit = fit_device(config, request, device, recipe)
        if fit.samples >= 1:
            return Alternative(change=change, needs=fit.needs)
    return None


def _shorter(config: Any, request: PlanRequest, device: Device, recipe: Recipe) -> Alternative | None:
    """The greatest length that fits, by halves."""
    length = 2 ** ((request.longest - 1).bit_length() - 1) if request.longest > 1 else 0
    while length >= SHORTEST:
        found = _try(config, request, device, f"max_length {length}", recipe.changed(max_length=length))
        if found is not None:
            return found
        length //= 2
    return None

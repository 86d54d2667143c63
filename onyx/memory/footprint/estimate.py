"""The footprint of a recipe: built on meta, probed under fake tensors at two small depths, checked at a third."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from onyx.memory.devices.device import Kind
from onyx.memory.errors import ModelConfigError
from onyx.memory.footprint import polynomial
from onyx.memory.footprint.blocks import find_blocks, period
from onyx.memory.footprint.footprint import Footprint, Static
from onyx.memory.footprint.model_builder import (
    beyond_window,
    build,
    check_length,
    is_causal,
    positions,
    sliding_window,
    without_attention_dropout,
)
from onyx.memory.footprint.probe import Trace, fake_copy, fake_tensors, token_trace
from onyx.memory.recipe import Recipe
from onyx.recipe.model import first_line

ADAM_STATES = 2  # exp_avg and exp_avg_sq, each as large as the weight
STEP_BYTES = 4  # the update count, one float32 per trained tensor


def count(model: nn.Module) -> Static:
    """Count a model on any device, meta included."""
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients = _bytes(trained)
    return Static(
        weights=_bytes(model.parameters()),
        buffers=_bytes(model.buffers()),
        gradients=gradients,
        optimizer=ADAM_STATES * gradients + STEP_BYTES * len(trained),
    )


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in {id(each): each for each in tensors}.values())


LENGTH_MOST = 1021
"""Longest sample of a probe. Only a sliding window makes longer samples behave differently."""

CHECK_SAMPLES = 3
CHECK_FRACTION = 0.4
"""The check runs this part of the probe's length."""

TOLERANCE = 0.002
"""A larger error of the check means that depths do not extrapolate: then the whole depth is probed."""


def estimate(config: Any, recipe: Recipe, kind: Kind) -> Footprint:
    """Probe a recipe for a device of that kind. Takes seconds: `stored.footprint_of` keeps the results."""
    check_length(config, recipe)
    if kind == "cuda":
        config = without_attention_dropout(config)
    model = build(config, recipe)
    shape = _shape(config, recipe, model)
    depths = _depths(config, model)
    found = _extrapolated(config, recipe, model, shape, depths) if depths is not None else None
    return found or _whole(config, recipe, model, shape)


def _extrapolated(
    config: Any, recipe: Recipe, model: nn.Module, shape: tuple[int, int], depths: tuple[int, int, int]
) -> Footprint | None:
    """From two small depths; None when the check at a third depth and another shape is off."""
    shallow, deep, beyond = (build(with_depth(config, depth), recipe) for depth in depths)
    many, one = ([_parts(_run(each, at, config, recipe)) for each in (shallow, deep)] for at in (shape, (1, shape[1])))

    def deepened(to: nn.Module, depth: int, error: float = 0.0) -> Footprint:
        parts = (polynomial.deeper(each[0], each[1], depths[:2], depth) for each in (many, one))
        return _footprint(to, *parts, error=error)

    error = _compare(deepened(beyond, depths[2]), _run(beyond, _check_shape(shape), config, recipe))
    return deepened(model, config.num_hidden_layers, error) if abs(error) <= TOLERANCE else None


def _whole(config: Any, recipe: Recipe, model: nn.Module, shape: tuple[int, int]) -> Footprint:
    """From the whole depth, checked at another shape."""
    many, one = (_parts(_run(model, at, config, recipe)) for at in (shape, (1, shape[1])))
    error = _compare(_footprint(model, many, one), _run(model, _check_shape(shape), config, recipe))
    return _footprint(model, many, one, error=error)


def _footprint(
    model: nn.Module, many: dict[str, polynomial.Rows], one: dict[str, polynomial.Rows], *, error: float = 0.0
) -> Footprint:
    return Footprint(static=count(model), many=polynomial.peaks(many), one=polynomial.peaks(one), error=error)


def _compare(guess: Footprint, seen: Trace) -> float:
    return guess.peak(seen.samples, seen.length) / seen.peak - 1


def _parts(trace: Trace) -> dict[str, polynomial.Rows]:
    return polynomial.parts(polynomial.live_rows(trace.log, trace.samples, trace.length), trace.marks)


def _check_shape(shape: tuple[int, int]) -> tuple[int, int]:
    return CHECK_SAMPLES, max(1, int(shape[1] * CHECK_FRACTION))


def _run(model: nn.Module, shape: tuple[int, int], config: Any, recipe: Recipe) -> Trace:
    try:
        with fake_tensors():
            return token_trace(
                fake_copy(model),
                *shape,
                causal=is_causal(config, recipe),
                precision=recipe.precision,
                objective=recipe.objective,
            )
    except Exception as error:  # models fail in many ways where a value decides what is computed
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ModelConfigError(
            f"a training step of this {config.model_type} model cannot be planned without running it ({reason}). "
            "Models that choose by value what they compute, like mixtures of experts, are not supported"
        ) from error


def with_depth(config: Any, depth: int) -> Any:
    """The same config with fewer blocks."""
    changed = copy.deepcopy(config)
    whole = config.num_hidden_layers
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == whole:
            setattr(changed, name, value[:depth])
    changed.num_hidden_layers = depth
    return changed


def _depths(config: Any, model: nn.Module) -> tuple[int, int, int] | None:
    whole = getattr(config, "num_hidden_layers", None)
    if not isinstance(whole, int):
        return None
    blocks = find_blocks(model, whole)
    every = period(model, blocks, getattr(config, "layer_types", None)) if blocks else None
    if every is None:
        return None
    first = whole % every + every
    last = first + 2 * every
    return (first, first + every, last) if last < whole else None


def _shape(config: Any, recipe: Recipe, model: nn.Module) -> tuple[int, int]:
    sizes = {size for each in model.parameters() for size in each.shape}
    sizes |= {size for each in model.buffers() for size in each.shape}
    most = min(positions(config) or LENGTH_MOST, LENGTH_MOST)
    window = sliding_window(config)
    if window is not None and beyond_window(config, recipe.max_length):
        return polynomial.primes(sizes, positions(config) or 2 * window, window)
    return polynomial.primes(sizes, min(most, window - 1) if window else most)

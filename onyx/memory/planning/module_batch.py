"""The largest batch of any torch module on a device, for the documented accumulators.

A transformers model is probed with token ids. For any other module the first layer tells the shape of a sample;
where it does not, `sample_shape` must be given. As no loss is known, the probe takes a cross-entropy over the
output's last dimension, which keeps as much as common losses do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from onyx.memory.devices.device import Device
from onyx.memory.errors import DoesNotFitError, SampleShapeError
from onyx.memory.footprint import polynomial
from onyx.memory.footprint.estimate import count
from onyx.memory.footprint.footprint import MOST_SAMPLES, Footprint
from onyx.memory.footprint.probe import fake_copy, fake_tensors, trace
from onyx.memory.footprint.stored import overhead_of
from onyx.memory.planning.device_fit import usable_memory
from onyx.memory.planning.request import fraction
from onyx.recipe.precision import Precision

TOKENS = 512
"""Length of a sample of token ids when none is given."""

STEPS = 128
"""Length of a sample of a recurrent or attention layer."""

IMAGE = 224
"""Height and width of a sample of an image model."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one sample looks like."""

    shape: tuple[int, ...]
    """Without the batch dimension."""

    is_ids: bool
    """Token ids instead of numbers."""


def plan_batch(
    model: nn.Module,
    devices: Device | Sequence[Device],
    *,
    target: int | None = None,
    max_memory_usage: float = 0.9,
    memory_safety_margin: float = 0.1,
    sample_shape: Sequence[int] | None = None,
    precision: Precision = "float32",
) -> int:
    """Samples per micro-batch that fit on every one of the devices; never more than `target`."""
    fraction("max_memory_usage", max_memory_usage)
    fraction("memory_safety_margin", memory_safety_margin)
    devices = [devices] if isinstance(devices, Device) else list(devices)
    if not devices:
        raise ValueError("devices must name at least one device")
    if target is not None and target < 1:
        raise ValueError(f"target must be at least 1, not {target}")
    sample = infer_sample(model, sample_shape)
    footprint = module_footprint(model, sample, precision)
    most = float(target or MOST_SAMPLES)
    for device in devices:
        usable = usable_memory(device, max_memory_usage, memory_safety_margin)
        overhead = overhead_of(device)
        fits = footprint.most_samples(overhead.live(usable), 1)
        if fits < 1:
            raise DoesNotFitError(
                needs=overhead.cautious(footprint.peak(1, 1)),
                length=sample.shape[0] if sample.shape else 1,
                shortages={device.label: usable},
                alternatives=[],
            )
        most = min(most, fits)
    return int(most)


def module_footprint(model: nn.Module, sample: Sample, precision: Precision = "float32") -> Footprint:
    """The footprint of a module whose samples all look the same: S is 1 in it. The module is not touched."""
    sizes = {size for each in model.parameters() for size in each.shape} | set(sample.shape)
    samples, _ = polynomial.primes(sizes, polynomial.SAMPLES_FROM)
    try:
        with fake_tensors():
            copied = fake_copy(model).train()
            seen = trace(copied, lambda n: _loss(copied, sample, n), samples, precision=precision)
    except Exception as error:  # a module may refuse a sample in its own way
        raise SampleShapeError(
            f"the module cannot be run with samples of shape {sample.shape}: {str(error).strip().splitlines()[0]}. "
            "Give sample_shape, the shape of one sample without the batch dimension"
        ) from error
    many = polynomial.peaks(polynomial.parts(polynomial.live_rows(seen.log, samples, 1), seen.marks))
    return Footprint(static=count(model), many=many, one=many, error=0.0)


def infer_sample(model: nn.Module, shape: Sequence[int] | None = None) -> Sample:
    """What a sample looks like: as given, else as the config or the first layer says."""
    config = getattr(model, "config", None)
    first = next((each for each in model.modules() if isinstance(each, KNOWN)), None)
    is_ids = isinstance(first, nn.Embedding) or hasattr(config, "vocab_size")
    if shape is not None:
        return Sample(shape=tuple(shape), is_ids=is_ids)
    if is_ids:
        limit = getattr(config, "max_position_embeddings", None)
        return Sample(shape=(min(TOKENS, limit) if isinstance(limit, int) else TOKENS,), is_ids=True)
    inferred = _first_input(first)
    if inferred is None:
        raise SampleShapeError(
            f"what a sample of {type(model).__name__} looks like cannot be inferred: give sample_shape, "
            "the shape of one sample without the batch dimension"
        )
    return Sample(shape=inferred, is_ids=False)


KNOWN = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, nn.LayerNorm, nn.MultiheadAttention)


def _first_input(layer: nn.Module | None) -> tuple[int, ...] | None:
    """The shape of one sample that this layer takes."""
    if isinstance(layer, nn.Linear):
        return (layer.in_features,)
    if isinstance(layer, nn.Conv1d):
        return (layer.in_channels, TOKENS)
    if isinstance(layer, nn.Conv2d):
        return (layer.in_channels, IMAGE, IMAGE)
    if isinstance(layer, nn.RNNBase):
        return (STEPS, layer.input_size)
    if isinstance(layer, nn.MultiheadAttention):
        return (STEPS, layer.embed_dim)
    if isinstance(layer, nn.LayerNorm):
        return tuple(layer.normalized_shape)
    return None


def _loss(model: nn.Module, sample: Sample, samples: int) -> torch.Tensor:
    shape = (samples, *sample.shape)
    given = torch.zeros(shape, dtype=torch.long) if sample.is_ids else torch.zeros(shape)
    output = _tensor(model(given))
    if output.dim() < 2:
        return output.float().square().sum()
    labels = torch.zeros(output.shape[:-1], dtype=torch.long)
    return functional.cross_entropy(output.flatten(0, -2).float(), labels.flatten(), reduction="sum")


def _tensor(output: Any) -> torch.Tensor:
    """The tensor that a loss would take: logits, else the first one."""
    if isinstance(output, torch.Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        found = getattr(output, name, None)
        if isinstance(found, torch.Tensor):
            return found
    if isinstance(output, list | tuple):
        return _tensor(output[0])
    raise TypeError(f"no tensor in the output of type {type(output).__name__}")

"""One training step under the counter: on real tensors, or on fake ones that have shapes and no bytes."""

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onyx.memory.footprint.blocks import mark_blocks
from onyx.memory.footprint.live_bytes import Counter
from onyx.memory.footprint.training_step import blank_batch, blank_pairs, finish_update, loss_sum, pair_loss_sum
from onyx.memory.recipe import Objective
from onyx.recipe.model import autocast
from onyx.recipe.optimizer import make_optimizer
from onyx.recipe.precision import Precision

Loss = Callable[[int], torch.Tensor]
"""Makes the batch of a micro-batch with that many samples, and its loss."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a probe recorded."""

    samples: int
    """B of the micro-batches."""

    length: int
    """S of the micro-batches."""

    base: int
    """Bytes before the first micro-batch: weights, buffers, optimizer state."""

    log: list[int]
    """Allocations and releases after that, in order."""

    marks: list[tuple[int, str]]
    """Where in the log each part of the step begins."""

    peak: int
    """The most bytes at once, base included."""


def token_trace(
    model: nn.Module,
    samples: int,
    length: int,
    *,
    causal: bool,
    precision: Precision = "float32",
    objective: Objective = "sft",
    micro_batches: int = 2,
) -> Trace:
    """Probe a transformers model that takes token ids."""

    def loss(count: int) -> torch.Tensor:
        if objective == "dpo":
            return pair_loss_sum(model, blank_pairs(count, length))
        return loss_sum(model, blank_batch(count, length, causal=causal))

    return trace(model, loss, samples, length, precision=precision, micro_batches=micro_batches)


def trace(
    model: nn.Module,
    loss: Loss,
    samples: int,
    length: int = 1,
    *,
    precision: Precision = "float32",
    micro_batches: int = 2,
) -> Trace:
    """Run one update of `micro_batches` micro-batches, and log what lives."""
    counter = Counter()
    with _no_garbage_collection(), counter, mark_blocks(model, counter) as parts:
        counter.hold(model.parameters())
        counter.hold(model.buffers())
        optimizer = make_optimizer(model.parameters())
        base, start = counter.live, len(counter.log)
        for number in range(micro_batches):
            with parts.micro_batch(number):
                with autocast(precision, "cpu"):
                    value = loss(samples)
                parts.backward()
                value.backward()
                del value
        counter.mark("update")
        finish_update(optimizer)
        counter.stop()
    marks = [(max(0, where - start), name) for where, name in counter.marks]
    return Trace(samples=samples, length=length, base=base, log=counter.log[start:], marks=marks, peak=counter.peak)


@contextlib.contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """New tensors have shapes and no bytes. Real tensors that a module keeps outside of its buffers are allowed."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _no_packed_samples():
        yield mode


def fake_copy(model: nn.Module) -> nn.Module:
    """The same model with fake parameters and buffers on the CPU; the original is not touched, nor its bytes read.

    The fakes are in deepcopy's memo, so it copies the structure around them. Call it under `fake_tensors`.
    """
    memo: dict[int, object] = {}
    for each in model.parameters():
        empty = torch.empty(each.shape, dtype=each.dtype, device="cpu")
        memo[id(each)] = nn.Parameter(empty, requires_grad=each.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")
    return copy.deepcopy(model, memo)


@contextlib.contextmanager
def _no_packed_samples() -> Iterator[None]:
    """Tell transformers that each row is one sample: it would read that from values, which fake tensors do not have."""
    try:
        from transformers import masking_utils
    except ImportError:
        yield
        return
    if not hasattr(masking_utils, "find_packed_sequence_indices"):
        yield
        return
    with mock.patch.object(masking_utils, "find_packed_sequence_indices", return_value=None):
        yield


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Without garbage collection, which would free cycles at arbitrary moments of the step."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

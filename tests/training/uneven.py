"""Matrix products whose last bits depend on their shape: a rank that cuts otherwise than before cannot hide it.

Real kernels choose their blocks by the number of rows, so that products of the same rows may round differently in a
larger micro-batch. On which CPU, and for which numbers, is chance: tests that compare bits would pass on one machine
and fail on another. These kernels do it on every machine, for every number of rows.
"""

import functools
import warnings
import zlib

import torch
from torch import Tensor
from torch.library import Library

COLUMNS = 64
"""More would take memory and time, and tell nothing new."""

_step = 2.0**-23
"""By what part a product is larger: in float32, one or two units in the last place."""

_libraries: list[Library] = []
"""Kernels stay registered as long as their library lives: as long as this process."""


def install() -> None:
    """From here on, in this process."""
    if _libraries:
        return
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that a kernel takes another one's place
        library.impl("mm", _mm, "CPU")
        library.impl("addmm", _addmm, "CPU")
        library.impl("bmm", _bmm, "CPU")
    _libraries.append(library)


def strongly() -> None:
    """For sums of so many numbers that their rounding hides what happens in the last place of each."""
    global _step
    _step = 2.0**-14


def uninstall() -> None:
    """Torch's own kernels again."""
    while _libraries:
        _libraries.pop()._destroy()


def _mm(one: Tensor, other: Tensor) -> Tensor:
    out = one.new_empty(one.shape[0], other.shape[1])
    torch.ops.aten.mm.out(one, other, out=out)
    return _uneven(out, one, other)


def _addmm(bias: Tensor, one: Tensor, other: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    out = one.new_empty(one.shape[0], other.shape[1])
    torch.ops.aten.addmm.out(bias, one, other, beta=beta, alpha=alpha, out=out)
    return _uneven(out, one, other)


def _bmm(one: Tensor, other: Tensor) -> Tensor:
    out = one.new_empty(one.shape[0], one.shape[1], other.shape[2])
    torch.ops.aten.bmm.out(one, other, out=out)
    return _uneven(out, one, other)


def _uneven(out: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Some of the first columns are a little larger: which ones, the shape decides."""
    if out.dtype == torch.float32:
        factors = _factors(tuple(one.shape), tuple(other.shape))
        out[..., :COLUMNS].mul_(factors[: out.shape[-1]])
    return out


@functools.cache
def _factors(one: tuple[int, ...], other: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(repr((one, other)).encode()))
    return 1 + torch.randint(2, (COLUMNS,), generator=generator) * _step

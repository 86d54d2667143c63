"""Matrix products whose last bits depend on their shape: a rank that cuts differently shows.

Real kernels choose their blocks by the number of rows, so that products of the same rows may round differently in a
larger micro-batch. Whether they do depends on the CPU and the numbers: tests that compare bits would pass on one
machine and fail on another. These kernels do it on every machine, for every number of rows.
"""

import functools
import warnings
import zlib

import torch
from torch import Tensor
from torch.library import Library

COLUMNS = 64
"""More would take memory and time, and show nothing new."""

_step = 2.0**-23
"""The relative change of a product: in float32, one or two units in the last place."""

_libraries: list[Library] = []
"""Kernels stay registered as long as their library lives: as long as this process."""


def install() -> None:
    """Replace torch's kernels in this process."""
    if _libraries:
        return
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel replaces another one
        library.impl("mm", _mm, "CPU")
        library.impl("addmm", _addmm, "CPU")
        library.impl("bmm", _bmm, "CPU")
    _libraries.append(library)


def strongly() -> None:
    """A larger change, for sums of so many numbers that rounding would hide the last place of each."""
    global _step
    _step = 2.0**-14


def uninstall() -> None:
    """Restore torch's own kernels."""
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
    """Make some of the first columns a little larger. The shape decides which."""
    if out.dtype == torch.float32:
        factors = _factors(tuple(one.shape), tuple(other.shape))
        out[..., :COLUMNS].mul_(factors[: out.shape[-1]])
    return out


@functools.cache
def _factors(one: tuple[int, ...], other: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(repr((one, other)).encode()))
    return 1 + torch.randint(2, (COLUMNS,), generator=generator) * _step

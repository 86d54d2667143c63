"""From logs of probes to the polynomials of a footprint. Needs no torch.

A probe's B and S are primes that divide none of the model's own sizes. So the bytes of an allocation tell how
it grows: divisible by B once and by S twice, it is a number × B·S². One probe gives all of them exactly, where a
regression over many shapes would give an average. A further probe, at another shape and depth, checks the result.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from onyx.memory.footprint.footprint import EXPONENTS, Peaks, Row

Rows = npt.NDArray[np.float64]
"""(points, exponents)."""

SAMPLES_FROM = 1009
"""Where the search for B begins: above small sizes of models, such as their number of heads."""


def primes(sizes: Iterable[int], most_length: int, least_length: int = 1) -> tuple[int, int]:
    """B and S for a probe: primes that divide none of `sizes`, S within the bounds."""
    taken = {size for size in sizes if size > 1}
    samples = next(n for n in range(SAMPLES_FROM, 2**20) if _is_prime(n) and _divides_none(n, taken))
    for n in range(most_length, max(least_length, 2) - 1, -1):
        if n != samples and _is_prime(n) and _divides_none(n, taken):
            return samples, n
    raise ValueError(f"no length from {least_length} to {most_length} can be told from the model's own sizes")


NO_FACTOR = (1 << 61) - 1
"""A prime that divides no allocation: stands for a dimension of 1, which cannot be told apart."""


def live_rows(log: list[int], samples: int, length: int) -> Rows:
    """The live bytes after each entry of the log, as numbers per exponent. A dimension of 1 is part of the number."""
    samples, length = (NO_FACTOR if each == 1 else each for each in (samples, length))
    rows = np.zeros((len(log), len(EXPONENTS)))
    for i, size in enumerate(log):
        column, factor = _monomial(size, samples, length)
        rows[i, column] = factor
    return np.cumsum(rows, axis=0)


def parts(rows: Rows, marks: list[tuple[int, str]]) -> dict[str, Rows]:
    """The rows of each part of the step. A part's first row is what was live when it began."""
    found: dict[str, Rows] = {}
    ends = [*marks, (len(rows), "")]
    for (begin, name), (end, _) in pairwise(ends):
        chunk = rows[max(0, begin - 1) : end]
        found[name] = np.concatenate([found[name], chunk]) if name in found else chunk
    return found


def deeper(shallow: dict[str, Rows], deep: dict[str, Rows], depths: tuple[int, int], depth: int) -> dict[str, Rows]:
    """The parts of a model of `depth` blocks, from those of two shallower models.

    Between the first and the last block the live bytes change by the same amount per block, so a peak inside the
    blocks lies in one of these two.
    """
    factor = (depth - depths[0]) / (depths[1] - depths[0])
    first, second = _ends_only(shallow, depths[0]), _ends_only(deep, depths[1])
    result = {}
    for name in first.keys() & second.keys():
        low, high = first[name], second[name]
        if len(low) != len(high):  # a loop over parameters: its peak is bounded by the largest number of each kind
            low, high = low.max(axis=0, keepdims=True), high.max(axis=0, keepdims=True)
        result[name] = low + factor * (high - low)
    return result


def peaks(found: dict[str, Rows]) -> Peaks:
    """The rows that can be a peak."""
    single = [rows for name, rows in found.items() if not name.startswith("1 ")]
    further = [rows for name, rows in found.items() if name.startswith("1 ")]
    return Peaks(single=_undominated(single), further=_undominated(further))


def _ends_only(found: dict[str, Rows], depth: int) -> dict[str, Rows]:
    """Only the first and the last block; a single block is both."""
    ends: dict[str, Rows] = {}
    for name, rows in found.items():
        head, _, index = name.rpartition(" block ")
        if not head:
            ends[name] = rows
            continue
        if int(index) == 0:
            ends[f"{head} first"] = rows
        if int(index) == depth - 1:
            ends[f"{head} last"] = rows
    return ends


def _undominated(found: list[Rows]) -> tuple[Row, ...]:
    """Without rows that another row is at least as large as in every number."""
    if not found:
        return ()
    rows: npt.NDArray[Any] = np.unique(np.ceil(np.concatenate(found)), axis=0)[::-1]
    kept: list[npt.NDArray[Any]] = []
    for row in sorted(rows, key=lambda each: -float(each.sum())):
        if not any(bool((other >= row).all()) for other in kept):
            kept.append(row)
    return tuple(tuple(int(number) for number in row) for row in kept)


def _monomial(size: int, samples: int, length: int) -> tuple[int, int]:
    """Which exponents an allocation has, and the number before them."""
    b = s = 0
    if size % samples == 0:
        size, b = size // samples, 1
    while s < 2 and size % length == 0:
        size, s = size // length, s + 1
    return EXPONENTS.index((b, s)), size


def _divides_none(n: int, sizes: set[int]) -> bool:
    return all(size % n for size in sizes)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))

"""A footprint: the bytes of live tensors that a training step needs, for every shape. Needs no torch.

A probe logs every allocation of a step. Each of them is a number times 1, B, S, B·S, S² or B·S² (B samples of S
tokens), so the live bytes at each point of the step are a polynomial in B and S, and the peak is the largest of them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

EXPONENTS = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))
"""Powers of B and of S, in the order of a row's numbers."""

Row = tuple[int, ...]
"""Bytes beyond the static base at one point of the step, one number per pair of exponents."""

MOST_SAMPLES = 1 << 20
"""No micro-batch is larger: beyond this, memory is not what limits it."""

BELOW_ONE = 0.999
"""What is reported to fit when a single sample does not, although the rows for several would allow it."""


@dataclass(frozen=True, kw_only=True)
class Static:
    """What a training process holds all the time, in bytes."""

    weights: int
    """Parameters, trained and frozen; tied ones once."""

    buffers: int
    """Rotary tables, masks, running statistics."""

    gradients: int
    """One float32 gradient per trained parameter."""

    optimizer: int
    """AdamW's state."""

    @property
    def base(self) -> int:
        """Held all the time. Gradients come and go within a window, so they are in the step's log."""
        return self.weights + self.buffers + self.optimizer


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Points of a step that can be its peak."""

    single: tuple[Row, ...]
    """Of a window of one micro-batch."""

    further: tuple[Row, ...]
    """Of a further micro-batch, when the gradients of those before are already there."""

    def highest(self, samples: float, length: int, *, accumulate: bool) -> float:
        """Bytes beyond the static base."""
        basis = [samples**b * length**s for b, s in EXPONENTS]
        return max(_dot(row, basis) for row in self._rows(accumulate))

    def most_samples(self, size: float, length: int, *, accumulate: bool) -> float:
        """The largest number of samples that `size` bytes suffice for. At one length every row is a line in it."""
        most = float(MOST_SAMPLES)
        for row in self._rows(accumulate):
            terms = [(b, number * length**s) for number, (b, s) in zip(row, EXPONENTS, strict=True)]
            per_sample = sum(term for b, term in terms if b)
            left = size - sum(term for b, term in terms if not b)
            if per_sample > 0:
                most = min(most, left / per_sample)
            elif left < 0:
                return 0.0
        return max(0.0, most)

    def _rows(self, accumulate: bool) -> tuple[Row, ...]:
        return self.single + self.further if accumulate else self.single


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Peak bytes of live tensors of one recipe, for any micro-batch."""

    static: Static
    """The exact part."""

    many: Peaks
    """For two samples and more."""

    one: Peaks
    """For a single sample: views then need no copy, and what they view stays alive instead."""

    error: float
    """How far a probe at another shape and depth was from what these rows say: 0.001 is 0.1 %."""

    def peak(self, samples: float, length: int, *, accumulate: bool = True) -> int:
        """Bytes at the peak of an update whose micro-batches are `samples` × `length`."""
        peaks = self.one if samples <= 1 else self.many
        return self.static.base + int(peaks.highest(samples, length, accumulate=accumulate))

    def most_samples(self, size: float, length: int, *, accumulate: bool = True) -> float:
        """The largest micro-batch whose peak is at most `size` bytes, as a real number; below 1 none fits."""
        left = size - self.static.base
        most = self.many.most_samples(left, length, accumulate=accumulate)
        if most >= 2:
            return most
        fits_one = self.one.highest(1, length, accumulate=accumulate) <= left
        return max(1.0, most) if fits_one else min(most, BELOW_ONE)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The footprint that `to_json` wrote; ValueError when the text is not one."""
        try:
            raw = json.loads(text)
            return cls(
                static=Static(**{name: int(value) for name, value in raw["static"].items()}),
                many=_peaks(raw["many"]),
                one=_peaks(raw["one"]),
                error=float(raw["error"]),
            )
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"not a stored footprint: {problem}") from problem


def _peaks(raw: dict[str, list[list[int]]]) -> Peaks:
    return Peaks(single=_rows(raw["single"]), further=_rows(raw["further"]))


def _dot(row: Row, basis: Sequence[float]) -> float:
    return sum(number * each for number, each in zip(row, basis, strict=True))


def _rows(raw: list[list[int]]) -> tuple[Row, ...]:
    if not raw:
        raise ValueError("not a stored footprint: no rows")
    rows = tuple(tuple(int(number) for number in row) for row in raw)
    if any(len(row) != len(EXPONENTS) for row in rows):
        raise ValueError(f"not a stored footprint: a row has {len(EXPONENTS)} numbers")
    return rows

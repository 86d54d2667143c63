"""Pairs: how two encoded answers become one sample, and how prepared ones are read. Needs no torch."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onyx.training.data.encode import Encoded
from onyx.training.data.findings import Finding
from onyx.training.data.preference import same_answers
from onyx.training.data.store import PreparedSamples

ROWS = 2
NAMES = ("preferred", "non-preferred")


def joined(
    encoded: Iterable[tuple[int, Encoded | list[Finding]]],
) -> Iterator[tuple[int, list[Encoded] | list[Finding]]]:
    """Each line's two answers, which come one after the other, or all that is wrong with them."""
    lines = iter(encoded)
    for (number, one), (_, other) in zip(lines, lines, strict=True):
        if isinstance(one, Encoded) and isinstance(other, Encoded):
            alike = np.array_equal(one.tokens, other.tokens)
            yield number, [same_answers(" as tokens, within max_length")] if alike else [one, other]
        elif not other:  # the line itself is wrong: it has no answers
            yield number, list(one) if isinstance(one, list) else []
        else:
            halves = zip(NAMES, (one, other), strict=True)
            yield number, [_of(name, each) for name, half in halves if isinstance(half, list) for each in half]


def _of(name: str, finding: Finding) -> Finding:
    return Finding(finding.code, f"{name}: {finding.message}")


class Pairs:
    """Pairs of a prepared directory, where the two answers of each stand one after the other."""

    rows = ROWS

    def __init__(self, halves: PreparedSamples) -> None:
        both = halves.lengths.reshape(-1, ROWS)
        self.halves = halves
        """The answers, as samples of their own: pair i has 2i, the preferred, and 2i + 1."""

        self.lengths: NDArray[np.int64] = ROWS * both.max(axis=1)
        """Padded tokens that a pair takes in a micro-batch: a pair is never split."""

        self.tokens: NDArray[np.int64] = both.sum(axis=1)
        self.weights: NDArray[np.int64] = np.ones(len(both), dtype=np.int64)
        """A pair counts one."""

        self.reference: NDArray[np.float32] = np.full((len(both), ROWS), np.nan, dtype=np.float32)
        """The log-probabilities of both answers under the model as it was. NaN where nobody has computed them yet."""

    @property
    def evaluation(self) -> "Pairs | None":
        """The pairs to evaluate on, when there are any."""
        held = self.halves.evaluation
        return Pairs(held) if held else None

    def __len__(self) -> int:
        return len(self.lengths)


def open_data(directory: Path) -> PreparedSamples | Pairs:
    """What a prepared directory holds: samples or pairs."""
    halves = PreparedSamples.open(directory)
    return Pairs(halves) if halves.meta.rows == ROWS else halves

"""The order of samples: a pure function of (seed, epoch, index).

A keyed permutation (a Feistel network over the bits of the index) instead of a shuffled array: sample 9,999,999 of ten
million costs as much as the first, nothing is kept in memory, a resumed attempt starts at once, and no new version of a
library's random generator can reorder a running job.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Words = NDArray[np.uint64]

ROUNDS = 8
"""Four rounds look random on large sets. Small ones, whose halves have a bit or two, need more."""

WORD = 2**64 - 1


def mix(*numbers: int) -> int:
    """Hash several numbers to one of 64 bits (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & WORD
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & WORD
        state ^= state >> 31
    return state


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order in which a job trains its samples, epoch after epoch."""

    count: int
    """Samples of an epoch."""

    seed: int

    def window(self, position: int, size: int) -> Indices:
        """The samples from `position` on (counted over all epochs), `size` of them or up to the end of the epoch."""
        epoch, start = divmod(position, self.count)
        return self.samples(epoch, np.arange(start, min(start + size, self.count)))

    def samples(self, epoch: int, places: Indices) -> Indices:
        """Which samples stand at these places of an epoch."""
        bits = max(2, (self.count - 1).bit_length())
        keys = [mix(self.seed, epoch, number) for number in range(ROUNDS)]
        found = places.astype(np.uint64)
        outside = np.ones(len(found), dtype=bool)
        # The network permutes 2^bits numbers, fewer than twice as many as there are samples. Cycle-walking (applying it
        # again to a number that is not a sample) makes it a permutation of the samples.
        while outside.any():
            found[outside] = _network(found[outside], bits, keys)
            outside = found >= self.count
        return found.astype(np.int64)


def _network(values: Words, bits: int, keys: list[int]) -> Words:
    low = bits // 2
    left, right, left_bits, right_bits = values >> np.uint64(low), values & _mask(low), bits - low, low
    for key in keys:
        changed = left ^ (_scrambled(right + np.uint64(key)) & _mask(left_bits))
        left, right, left_bits, right_bits = right, changed, right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


def _scrambled(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))

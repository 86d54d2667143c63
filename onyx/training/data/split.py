"""Which samples are held out: a pure function of the seed and the sample's number. Needs no torch."""

import numpy as np
from numpy.typing import NDArray


def held_out(samples: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which of so many samples are for evaluation: the nearest whole number to the fraction, at least one of each kind.

    The samples with the smallest hashes of (seed, number) are taken, so appending to the data moves few of the others.
    """
    count = min(max(1, round(samples * fraction)), samples - 1) if fraction > 0 else 0
    chosen = np.zeros(samples, dtype=np.bool_)
    if count > 0:
        chosen[np.argsort(_hashes(samples, seed), kind="stable")[:count]] = True
    return chosen


def _hashes(samples: int, seed: int) -> NDArray[np.uint64]:
    """splitmix64: the same on every host and in every version of every library."""
    with np.errstate(over="ignore"):
        value = np.arange(1, samples + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        value += np.uint64(seed) * np.uint64(0xD1B54A32D192ED03)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))

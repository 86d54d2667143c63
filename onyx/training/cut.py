"""How a window is cut: into one share per rank, and each share into micro-batches.

However it is cut, the update is the same, because every micro-batch divides by the weight of the whole window. So the
cut serves memory and speed alone: neighbours in length share a micro-batch, and the longest come first, so that what
does not fit shows at once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onyx.training.order import Indices

Lengths = NDArray[np.integer]


def longest_first(samples: Indices, lengths: Lengths) -> Indices:
    """Sorted by length. Samples of one length keep their order."""
    ordered: Indices = samples[np.argsort(-lengths[samples].astype(np.int64), kind="stable")]
    return ordered


def shares(window: Indices, lengths: Lengths, parts: Sequence[float], budget: int) -> list[Indices]:
    """A window's samples for each rank, longest first, in proportion to `parts`. A share may be empty.

    Each rank gets a stretch of the sorted window, so that neighbours in length stay together, and stretches are
    measured in padded tokens, as they are when the whole window is cut by `budget`. (Computed for two ranks, 32 samples
    of log-normal length, 1024 tokens: 1.96 times one rank; stretches of equal plain tokens 1.88; dealt out 1.74.)
    `budget` is the plan's, whatever a rank's has become: one that must cut finer moves no sample to another.
    """
    ordered = longest_first(window, lengths)
    if len(parts) == 1:
        return [ordered]
    costs = np.concatenate([np.full(len(each), lengths[each[0]]) for each in micro_batches(ordered, lengths, budget)])
    middles = np.cumsum(costs, dtype=np.int64) - costs / 2
    ends = np.cumsum(parts)[:-1] / sum(parts) * costs.sum(dtype=np.int64)
    owners = np.searchsorted(ends, middles)
    return [ordered[owners == rank] for rank in range(len(parts))]


def micro_batches(share: Indices, lengths: Lengths, budget: int) -> list[Indices]:
    """Cut a share (longest first) so that no micro-batch has more than `budget` padded tokens.

    A sample that is longer than the budget runs alone.
    """
    cut: list[Indices] = []
    start = 0
    while start < len(share):
        count = samples_within(budget, int(lengths[share[start]]))
        cut.append(share[start : start + count])
        start += count
    return cut


def samples_within(budget: int, length: int) -> int:
    """How many samples, padded to `length`, a micro-batch takes: at least one."""
    return max(1, budget // length)

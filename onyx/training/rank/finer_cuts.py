"""Cutting a rank's samples finer until they fit into memory: for training, for evaluation and for the reference.

What was computed with a cut that did not fit is computed again. So the result is, bit for bit, that of a rank that had
cut so from the start, and the budget alone says how to come to it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from onyx.memory.devices.cpu import is_out_of_memory
from onyx.training.packing.cut import mean_length, micro_batches
from onyx.training.packing.order import Indices
from onyx.training.packing.samples import Data
from onyx.training.rank.out_of_memory import finer, free
from onyx.training.rank.step import RankStep


@dataclass(frozen=True, kw_only=True)
class Short:
    """A micro-batch that ran out of memory."""

    chosen: Indices
    in_backward: bool = False


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """How the samples were cut in the end."""

    budget: int
    """Tokens of a micro-batch, lower than before where memory ran out."""

    widest: int = 0
    """Samples of the largest micro-batch."""

    retries: int = 0
    """How often memory ran out,"""

    in_backward: int = 0
    """and how often of these in backward."""

    stuck: int = 0
    """Tokens of a sample that does not fit even alone; 0 when all do."""


def cut_until_it_fits(
    worker: RankStep,
    samples: Data,
    share: Indices,
    *,
    budget: int,
    cost: int,
    run: Callable[[list[Indices]], Short | None],
) -> Fitted:
    """Give `run` all micro-batches of the share, and again, cut finer, for as long as one runs out of memory."""
    retries = in_backward = 0
    lengths = samples.lengths
    while True:
        cut = micro_batches(share, lengths, budget, cost, joined=worker.joined)
        short = run(cut)
        if short is None:
            widest = max((len(chosen) for chosen in cut), default=0)
            return Fitted(budget=budget, widest=widest, retries=retries, in_backward=in_backward)
        # Outside of `except`: no traceback holds on to what the micro-batch had allocated.
        free(worker.parameters)
        retries += 1
        in_backward += short.in_backward
        length = mean_length(lengths[short.chosen]) if worker.joined else int(lengths[short.chosen[0]])
        smaller = finer(budget, samples=len(short.chosen), length=length)
        if smaller is None:
            return Fitted(budget=budget, retries=retries, in_backward=in_backward, stuck=length)
        budget = smaller


def run_all(worker: RankStep, cut: list[Indices], run: Callable[[Indices], None]) -> Short | None:
    """Run micro-batches until all are done, one runs out of memory, which is returned, or the rank is told to stop."""
    for chosen in cut:
        if worker.stop.requested:
            return None
        try:
            run(chosen)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            continue
        return Short(chosen=chosen)
    return None

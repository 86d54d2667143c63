"""Running a rank's share of samples in micro-batches, cut finer until they fit into memory.

A rank whose memory runs out drops what it computed with that cut, cuts the share finer and runs all of it again. The
result is, bit for bit, that of a rank that had used the finer cut from the start, and the budget alone reproduces it.
No collective runs in here: the other ranks wait at the vote.

`run_share` is the share of a training window; evaluation and the reference call `cut_until_it_fits` themselves.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from torch import Tensor

from onyx.accumulation.window import Window
from onyx.memory.devices.cpu import is_out_of_memory
from onyx.training.packing.cut import mean_length, micro_batches
from onyx.training.packing.order import Indices
from onyx.training.packing.samples import Data
from onyx.training.rank.out_of_memory import free_memory, smaller_budget
from onyx.training.rank.step import RankStep


@dataclass(frozen=True, kw_only=True)
class TooLarge:
    """A micro-batch that ran out of memory."""

    chosen: Indices
    in_backward: bool = False


@dataclass(frozen=True, kw_only=True)
class FittedCut:
    """How the samples were cut in the end."""

    budget: int
    """Tokens of a micro-batch; lower than planned where memory ran out."""

    widest: int = 0
    """Samples of the largest micro-batch."""

    retries: int = 0
    """How often memory ran out."""

    in_backward: int = 0
    """How many of the retries were in backward."""

    oversized: int = 0
    """Tokens of a sample that does not fit even alone; 0 when all fit."""


@dataclass(frozen=True, kw_only=True)
class ShareResult(FittedCut):
    """A rank's share of a window after forward and backward."""

    window: Window
    sums: list[Tensor] = field(default_factory=list)
    """`ForwardResult.sums` of each micro-batch."""


def run_share(step: RankStep, share: Indices, *, budget: int, weight: float, update: int, cost: int = 0) -> ShareResult:
    """Forward and backward of the whole share. It is left unfinished when the rank is asked to stop."""
    window = Window(length=1, weight=weight)
    sums: list[Tensor] = []

    def run(cut: list[Indices]) -> TooLarge | None:
        nonlocal window
        window = Window(length=max(1, len(cut)), weight=weight)
        sums.clear()
        too_large = run_all(step, cut, run_one)
        # The window counts a micro-batch between its forward and its backward.
        return too_large and replace(too_large, in_backward=window.count > len(sums))

    def run_one(chosen: Indices) -> None:
        sums.append(step.forward_backward(chosen, window, update))

    # A window without weight has no label token: nothing to run.
    trained = share if weight else share[:0]
    fitted = cut_until_it_fits(step, step.samples, trained, budget=budget, cost=cost, run=run)
    return ShareResult(window=window, sums=sums, **asdict(fitted))


def cut_until_it_fits(
    step: RankStep,
    samples: Data,
    share: Indices,
    *,
    budget: int,
    cost: int,
    run: Callable[[list[Indices]], TooLarge | None],
) -> FittedCut:
    """Call `run` with all micro-batches of the share, and again with a finer cut while one runs out of memory."""
    retries = in_backward = 0
    lengths = samples.lengths
    while True:
        cut = micro_batches(share, lengths, budget, cost, joined=step.joined)
        too_large = run(cut)
        if too_large is None:
            widest = max((len(chosen) for chosen in cut), default=0)
            return FittedCut(budget=budget, widest=widest, retries=retries, in_backward=in_backward)
        # Outside of `except`: a traceback would keep the micro-batch's tensors alive.
        free_memory(step.parameters)
        retries += 1
        in_backward += too_large.in_backward
        chosen_lengths = lengths[too_large.chosen]
        length = mean_length(chosen_lengths) if step.joined else int(chosen_lengths[0])
        smaller = smaller_budget(budget, samples=len(too_large.chosen), length=length)
        if smaller is None:
            return FittedCut(budget=budget, retries=retries, in_backward=in_backward, oversized=length)
        budget = smaller


def run_all(step: RankStep, cut: list[Indices], run: Callable[[Indices], None]) -> TooLarge | None:
    """Run micro-batches until all are done or the rank is asked to stop. Return one that runs out of memory."""
    for chosen in cut:
        if step.stop.requested:
            return None
        try:
            run(chosen)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            continue
        return TooLarge(chosen=chosen)
    return None

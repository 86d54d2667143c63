"""Running a rank's share of a window, however little memory there is.

No collective runs in here. A rank that runs out of memory drops its share's gradients, cuts the share finer and runs it
again, while the others wait at the vote: the result is, bit for bit, that of a rank that had cut it so at once.
"""

from dataclasses import asdict, dataclass, field, replace

from torch import Tensor

from onyx.accumulation.window import Window
from onyx.training.packing.order import Indices
from onyx.training.rank.finer_cuts import Fitted, Short, cut_until_it_fits, run_all
from onyx.training.rank.step import RankStep


@dataclass(frozen=True, kw_only=True)
class ShareResult(Fitted):
    """What became of a rank's share."""

    window: Window
    sums: list[Tensor] = field(default_factory=list)
    """What its micro-batches told besides their losses."""


def run_share(
    worker: RankStep, share: Indices, *, budget: int, weight: float, update: int, cost: int = 0
) -> ShareResult:
    """Forward and backward of all of it, or of none. Left half done when the rank was told to stop."""
    window = Window(length=1, weight=weight)
    sums: list[Tensor] = []

    def run(cut: list[Indices]) -> Short | None:
        nonlocal window
        window = Window(length=max(1, len(cut)), weight=weight)
        sums.clear()
        short = run_all(worker, cut, one)
        # The window counts a micro-batch between its forward and its backward.
        return short and replace(short, in_backward=window.count > len(sums))

    def one(chosen: Indices) -> None:
        sums.append(worker.run(chosen, window, update))

    # A window that weighs nothing has nothing to teach.
    learnt = share if weight else share[:0]
    fitted = cut_until_it_fits(worker, worker.samples, learnt, budget=budget, cost=cost, run=run)
    return ShareResult(window=window, sums=sums, **asdict(fitted))

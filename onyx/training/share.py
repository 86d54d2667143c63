"""Running a rank's share of a window, however little memory there is.

No collective runs in here. A rank that runs out of memory drops its share's gradients, cuts the share finer and runs it
again, while the others wait at the vote: the result is, bit for bit, that of a rank that had cut it so at once.
"""

from dataclasses import dataclass, field

from torch import Tensor

from onyx.accumulation.window import Window
from onyx.memory.cpu import is_out_of_memory
from onyx.training.cut import mean_length, micro_batches
from onyx.training.oom import finer, free
from onyx.training.order import Indices
from onyx.training.worker import Worker


@dataclass(frozen=True, kw_only=True)
class ShareResult:
    """What became of a rank's share."""

    window: Window
    sums: list[Tensor] = field(default_factory=list)
    """What its micro-batches told besides their losses."""

    budget: int
    """Padded tokens of a micro-batch, lower than before where memory ran out."""

    widest: int = 0
    """Samples of the largest micro-batch."""

    retries: int = 0
    """How often memory ran out,"""

    in_backward: int = 0
    """and how often of these in backward."""

    stuck: int = 0
    """Tokens of a sample that does not fit even alone; 0 when all do."""


def run_share(worker: Worker, share: Indices, *, budget: int, weight: float, update: int, cost: int = 0) -> ShareResult:
    """Forward and backward of all of it, or of none. Left half done when the rank was told to stop."""
    retries = in_backward = 0
    lengths = worker.samples.lengths
    while True:
        # A window that weighs nothing has nothing to teach.
        cut = micro_batches(share, lengths, budget, cost, joined=worker.joined) if weight else []
        window = Window(length=max(1, len(cut)), weight=weight)
        sums: list[Tensor] = []
        short = _run(worker, cut, window, update, sums)
        if short is None:
            widest = max((len(chosen) for chosen in cut), default=0)
            return ShareResult(
                window=window, sums=sums, budget=budget, widest=widest, retries=retries, in_backward=in_backward
            )
        # Outside of `except`: no traceback holds on to what the micro-batch had allocated.
        free(worker.parameters)
        retries += 1
        in_backward += short.in_backward
        length = mean_length(lengths[short.chosen]) if worker.joined else int(lengths[short.chosen[0]])
        smaller = finer(budget, samples=len(short.chosen), length=length)
        if smaller is None:
            return ShareResult(window=window, budget=budget, stuck=length)
        budget = smaller


@dataclass(frozen=True, kw_only=True)
class _Short:
    """A micro-batch that ran out of memory."""

    chosen: Indices
    in_backward: bool


def _run(worker: Worker, cut: list[Indices], window: Window, update: int, sums: list[Tensor]) -> _Short | None:
    """The micro-batch that ran out of memory, or None."""
    for number, chosen in enumerate(cut):
        if worker.stop.requested:
            return None
        try:
            told = worker.run(chosen, window, update)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            sums += [] if told is None else [told]
            continue
        # The window counts a micro-batch between its forward and its backward.
        return _Short(chosen=chosen, in_backward=window.count > number)
    return None

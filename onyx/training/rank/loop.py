"""The training loop. Start reading here."""

import time
from enum import Enum, auto

from onyx.accumulation.boundary import close
from onyx.training.rank.bookkeeping import count_window
from onyx.training.rank.epoch import close_epoch
from onyx.training.rank.reference import make_reference, missing_stretches
from onyx.training.rank.run import Run
from onyx.training.rank.share import run_share
from onyx.training.rank.startup import start
from onyx.training.rank.vote import agree
from onyx.training.state.journal import Place


class Ending(Enum):
    """How a run ended."""

    DONE = auto()
    STOPPED = auto()
    """A rank was asked to stop. The last finished update is saved."""


def train(run: Run) -> Ending:
    """Train all windows that are left. Each is one update, or is skipped."""
    progress, step = run.progress, run.step
    missing = missing_stretches(run)
    start(run, run.place(missing[0].number if missing else None))
    if not make_reference(run, missing):
        return stop(run)

    while not progress.is_over(run.attempt.spec.training.epochs):
        if progress.epoch_is_over(run.order.count):
            if not close_epoch(run):
                return stop(run)
            continue

        began = time.monotonic()
        window = run.next_window()
        run.throughput.begin(int(step.samples.tokens[window.share].sum()))
        share = run_share(
            step,
            window.share,
            budget=run.relaxed_budget(),
            cost=run.share.micro_batch_cost,
            weight=window.weight,
            update=progress.update,
        )
        agreed = agree(run, share, Place(window=window.number))
        if agreed.stop:
            return stop(run)

        run.ranks.reduce(step.parameters)
        run.set_learning_rate(window.rate)
        update = close(share.window, run.optimizer, max_norm=progress.steering.clipping, scaling=step.scaling)

        count_window(run, window, agreed, update, seconds=time.monotonic() - began)
        if run.recorder.due(progress.update):
            save(run)
    save(run)
    return Ending.DONE


def stop(run: Run) -> Ending:
    """Save the last finished update. The gradients of the unfinished window are dropped."""
    run.optimizer.zero_grad(set_to_none=True)
    save(run)
    return Ending.STOPPED


def save(run: Run) -> None:
    run.progress.scaler = run.step.scaler_state()
    run.recorder.save(run.progress, run.step.model, run.optimizer)

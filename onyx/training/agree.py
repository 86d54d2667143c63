"""The vote at the end of a share: ranks agree to go on, to stop or to fail, and on what steers the windows to come."""

from dataclasses import dataclass

import torch

from onyx.accumulation.exchange import Ballot
from onyx.accumulation.number import read
from onyx.training.control import Change
from onyx.training.oom import does_not_fit, peak_bytes
from onyx.training.ranks import Told, heard
from onyx.training.run import Run
from onyx.training.share import ShareResult


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What holds for all ranks after the vote."""

    stop: bool
    told: list[Told]

    @property
    def loss(self) -> float:
        """Sum of the losses of the window's label tokens. Added in the order of ranks: the same on each."""
        return sum(each.loss for each in self.told)

    @property
    def margin(self) -> float:
        """Sum of the reward margins of the window's pairs."""
        return sum(each.margin for each in self.told)

    @property
    def right(self) -> int:
        """How many of the window's label tokens, or pairs, the model had right before the update."""
        return sum(each.right for each in self.told)


def agree(run: Run, share: ShareResult, window: int) -> Agreed:
    """Vote. What changes is in the journal before anybody steps."""
    change = run.control.change(_newest_config(run)) if run.ranks.first else None
    *margin, right = torch.stack(share.sums).sum(0).tolist() if share.sums else [0]
    mine = Told(
        budget=share.budget,
        loss=read(share.window.losses),
        margin=sum(margin),
        right=int(right),
        micro_batches=share.window.count,
        widest=share.widest,
        retries=share.retries,
        in_backward=share.in_backward,
        peak=peak_bytes(run.worker.device),
        stuck=share.stuck,
        config=change.seq if change else 0,
        accumulation_steps=(change.accumulation_steps or 0) if change else 0,
        clipping=_told_clipping(change),
    )
    run.pace.end()  # reading the losses has waited for the device; what comes now is waiting for others
    ballot = Ballot(failed=share.stuck > 0, stop=run.worker.stop.requested, told=mine.numbers())
    result = run.ranks.vote(ballot, run.worker.parameters)
    told = heard(result.told)
    if result.failed:
        rank = next(rank for rank, each in enumerate(told) if each.stuck)
        raise does_not_fit(told[rank].stuck, run.attempt.shares[rank], run.attempt.spec.training)
    _lower_budgets(run, window, told)
    _change_config(run, window + 1, told[0])
    return Agreed(stop=result.stop, told=told)


def _lower_budgets(run: Run, window: int, told: list[Told]) -> None:
    steering = run.progress.steering
    budgets = tuple(each.budget for each in told)
    if budgets == steering.budgets:
        return
    where = [
        _account(share.device, before, now)
        for share, before, now in zip(run.attempt.shares, steering.budgets, told, strict=True)
        if now.budget < before
    ]
    details = {
        "update": run.progress.update,
        "retries": [each.retries for each in told],
        "in_backward": [each.in_backward for each in told],
    }
    line = run.journal.memory(window, budgets, f"{'; '.join(where)}. The update stays the same", details)
    run.progress.steering = line.applied(steering)


def _account(device: str, before: int, now: Told) -> str:
    times = f"{now.retries} time{'s' if now.retries > 1 else ''} ({now.in_backward} in backward)"
    what = f"ran out of memory {times}" if now.retries else "had to try again for memory in two windows"
    return f"{device} {what}: its micro-batches go from {before} to {now.budget} padded tokens"


def _change_config(run: Run, window: int, told: Told) -> None:
    """Takes effect at the next window, where the journal is obeyed like any other line of it."""
    if not told.config:
        return
    steering = run.progress.steering
    samples = run.window_of(told.accumulation_steps) if told.accumulation_steps else steering.window
    clipping = steering.clipping if told.clipping < 0 else told.clipping or None
    run.journal.config_change(window, samples, clipping, told.config)


def _newest_config(run: Run) -> int:
    return max(run.progress.steering.config, run.journal.config)


def _told_clipping(change: Change | None) -> float:
    if change is None or not change.sets_clipping:
        return -1.0
    return change.gradient_clipping or 0.0

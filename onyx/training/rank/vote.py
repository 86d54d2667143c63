"""The vote at the end of a share: ranks agree to go on, to stop or to fail, and on what steers the job from here on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from onyx.accumulation.exchange import Ballot
from onyx.accumulation.lazy_scalar import read
from onyx.training.rank.out_of_memory import does_not_fit, peak_bytes
from onyx.training.rank.rank_group import RankReport, parse_reports
from onyx.training.rank.run import Run
from onyx.training.rank.share import FittedCut, ShareResult
from onyx.training.state.config_changes import ConfigChangeLine
from onyx.training.state.journal import Place


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What holds for all ranks after the vote."""

    stop: bool
    told: list[RankReport]

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


def agree(run: Run, share: ShareResult, place: Place) -> Agreed:
    """Vote. What changes is in the journal before anybody steps."""
    change = run.config_changes.change(_newest_config(run)) if run.ranks.first else None
    *margin, right = torch.stack(share.sums).sum(0).tolist() if share.sums else [0]
    mine = replace(
        _told_of(share),
        loss=read(share.window.losses),
        margin=sum(margin),
        right=int(right),
        micro_batches=share.window.count,
        peak=peak_bytes(run.step.device),
        eager=int(run.step.compiled is not None and run.step.compiled.failed is not None),
        config=change.seq if change else 0,
        accumulation_steps=(change.accumulation_steps or 0) if change else 0,
        clipping=_told_clipping(change),
    )
    run.throughput.end()  # reading the losses has waited for the device; what comes now is waiting for others
    ballot = Ballot(failed=share.oversized > 0, stop=run.step.stop.requested, numbers=mine.numbers())
    result = run.ranks.vote(ballot, run.step.parameters)
    told = parse_reports(result.numbers)
    if result.failed:
        _refuse(run, told)
    _lower_budgets(run, place, run.progress.steering.budgets, told)
    _stop_compiling(run, place, told)
    _change_config(run, place.window + 1, told[0])
    return Agreed(stop=result.stop, told=told)


def agree_on(
    run: Run, fitted: FittedCut, numbers: Sequence[float], place: Place, budgets: tuple[int, ...]
) -> list[tuple[float, ...]] | None:
    """Vote after a share of what trains nothing: each rank's numbers, or None when a rank was told to stop.

    `budgets` are those that the ranks began with. Lower ones are in the journal before the numbers are used.
    """
    mine = (*_told_of(fitted).numbers(), *numbers)
    result = run.ranks.vote(Ballot(failed=fitted.oversized > 0, stop=run.step.stop.requested, numbers=mine))
    said = [result.numbers[start : start + len(mine)] for start in range(0, len(result.numbers), len(mine))]
    own = len(mine) - len(numbers)
    told = [parse_reports(each[:own])[0] for each in said]
    if result.failed:
        _refuse(run, told)
    if result.stop:
        return None
    _lower_budgets(run, place, budgets, told)
    return [each[own:] for each in said]


def _told_of(fitted: FittedCut) -> RankReport:
    return RankReport(
        budget=fitted.budget,
        widest=fitted.widest,
        retries=fitted.retries,
        in_backward=fitted.in_backward,
        oversized=fitted.oversized,
    )


def _refuse(run: Run, told: list[RankReport]) -> NoReturn:
    """One sample alone is too much for a rank."""
    rank = next(rank for rank, each in enumerate(told) if each.oversized)
    raise does_not_fit(told[rank].oversized, run.attempt.shares[rank], run.attempt.spec.training)


def _lower_budgets(run: Run, place: Place, before: tuple[int, ...], told: list[RankReport]) -> None:
    budgets = tuple(each.budget for each in told)
    if budgets == before:
        return
    where = [
        _account(share.device, former, now)
        for share, former, now in zip(run.attempt.shares, before, told, strict=True)
        if now.budget < former
    ]
    details = {
        "update": run.progress.update,
        "retries": [each.retries for each in told],
        "in_backward": [each.in_backward for each in told],
    }
    line = run.journal.memory(place, budgets, f"{'; '.join(where)}. The update stays the same", details)
    run.steer(line.applied(run.progress.steering))


def _stop_compiling(run: Run, place: Place, told: list[RankReport]) -> None:
    """What one rank cannot compile is compiled on none, and in no attempt that does these windows again."""
    if run.progress.steering.eager or not any(each.eager for each in told):
        return
    line = run.journal.not_compiled(place, f"from window {place.window} on every rank runs its step without compiling")
    run.steer(line.applied(run.progress.steering))


def _account(device: str, before: int, now: RankReport) -> str:
    times = f"{now.retries} time{'s' if now.retries > 1 else ''} ({now.in_backward} in backward)"
    what = f"ran out of memory {times}" if now.retries else "had to try again for memory in two windows"
    return f"{device} {what}: its micro-batches go from {before} to {now.budget} padded tokens"


def _change_config(run: Run, window: int, told: RankReport) -> None:
    """Takes effect at the next window, where the journal is obeyed like any other line of it."""
    if not told.config:
        return
    steering = run.progress.steering
    samples = run.window_of(told.accumulation_steps) if told.accumulation_steps else steering.window
    clipping = steering.clipping if told.clipping < 0 else told.clipping or None
    run.journal.config_change(window, samples, clipping, told.config)


def _newest_config(run: Run) -> int:
    return max(run.progress.steering.config, run.journal.config)


def _told_clipping(change: ConfigChangeLine | None) -> float:
    if change is None or not change.sets_clipping:
        return -1.0
    return change.gradient_clipping or 0.0

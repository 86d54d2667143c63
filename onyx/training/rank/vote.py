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
    reports: list[RankReport]

    @property
    def loss(self) -> float:
        """Sum of the losses of the window's label tokens, added in the order of ranks: the same on each."""
        return sum(each.loss for each in self.reports)

    @property
    def margin(self) -> float:
        """Sum of the reward margins of the window's pairs."""
        return sum(each.margin for each in self.reports)

    @property
    def correct(self) -> int:
        """How many of the window's label tokens, or pairs, the model had right before the update."""
        return sum(each.correct for each in self.reports)


def agree(run: Run, share: ShareResult, place: Place) -> Agreed:
    """Vote after a share. A change that the vote brings is in the journal before any rank steps."""
    change = run.config_changes.change(_newest_config(run)) if run.ranks.first else None
    *margin, correct = torch.stack(share.sums).sum(0).tolist() if share.sums else [0]
    mine = replace(
        _report_of(share),
        loss=read(share.window.losses),
        margin=sum(margin),
        correct=int(correct),
        micro_batches=share.window.count,
        peak=peak_bytes(run.step.device),
        eager=int(run.step.compiled is not None and run.step.compiled.failed is not None),
        config=change.seq if change else 0,
        accumulation_steps=(change.accumulation_steps or 0) if change else 0,
        clipping=_clipping_to_report(change),
    )
    run.throughput.end()  # reading the losses has waited for the device; from here on this rank waits for others
    ballot = Ballot(failed=share.oversized > 0, stop=run.step.stop.requested, numbers=mine.numbers())
    result = run.ranks.vote(ballot, run.step.parameters)
    reports = parse_reports(result.numbers)
    if result.failed:
        _refuse(run, reports)
    _lower_budgets(run, place, run.progress.steering.budgets, reports)
    _stop_compiling(run, place, reports)
    _change_config(run, place.window + 1, reports[0])
    return Agreed(stop=result.stop, reports=reports)


def agree_on(
    run: Run, fitted: FittedCut, numbers: Sequence[float], place: Place, budgets: tuple[int, ...]
) -> list[tuple[float, ...]] | None:
    """Vote after a share that trains nothing. Return each rank's numbers, or None when a rank was asked to stop.

    `budgets` are those that the ranks began with. Lower ones are in the journal before the numbers are used.
    """
    mine = (*_report_of(fitted).numbers(), *numbers)
    result = run.ranks.vote(Ballot(failed=fitted.oversized > 0, stop=run.step.stop.requested, numbers=mine))
    parts = [result.numbers[start : start + len(mine)] for start in range(0, len(result.numbers), len(mine))]
    width = len(mine) - len(numbers)
    reports = [parse_reports(part[:width])[0] for part in parts]
    if result.failed:
        _refuse(run, reports)
    if result.stop:
        return None
    _lower_budgets(run, place, budgets, reports)
    return [part[width:] for part in parts]


def _report_of(fitted: FittedCut) -> RankReport:
    return RankReport(
        budget=fitted.budget,
        widest=fitted.widest,
        retries=fitted.retries,
        in_backward=fitted.in_backward,
        oversized=fitted.oversized,
    )


def _refuse(run: Run, reports: list[RankReport]) -> NoReturn:
    """One sample alone does not fit on a rank."""
    rank = next(rank for rank, each in enumerate(reports) if each.oversized)
    raise does_not_fit(reports[rank].oversized, run.attempt.shares[rank], run.attempt.spec.training)


def _lower_budgets(run: Run, place: Place, before: tuple[int, ...], reports: list[RankReport]) -> None:
    budgets = tuple(each.budget for each in reports)
    if budgets == before:
        return
    where = [
        _describe(share.device, former, now)
        for share, former, now in zip(run.attempt.shares, before, reports, strict=True)
        if now.budget < former
    ]
    details = {
        "update": run.progress.update,
        "retries": [each.retries for each in reports],
        "in_backward": [each.in_backward for each in reports],
    }
    line = run.journal.lower_budgets(place, budgets, f"{'; '.join(where)}. The update stays the same", details)
    run.steer(line.applied(run.progress.steering))


def _stop_compiling(run: Run, place: Place, reports: list[RankReport]) -> None:
    """When one rank cannot compile, none does, nor does any later attempt at these windows."""
    if run.progress.steering.eager or not any(each.eager for each in reports):
        return
    message = f"from window {place.window} on every rank runs its step without compiling"
    line = run.journal.stop_compiling(place, message)
    run.steer(line.applied(run.progress.steering))


def _describe(device: str, before: int, now: RankReport) -> str:
    times = f"{now.retries} time{'s' if now.retries > 1 else ''} ({now.in_backward} in backward)"
    what = f"ran out of memory {times}" if now.retries else "had to try again for memory in two windows"
    return f"{device} {what}: its micro-batches go from {before} to {now.budget} padded tokens"


def _change_config(run: Run, window: int, report: RankReport) -> None:
    """Write rank 0's change to the journal. Like any line of it, it takes effect at its window, the next one."""
    if not report.config:
        return
    steering = run.progress.steering
    samples = run.window_of(report.accumulation_steps) if report.accumulation_steps else steering.window
    clipping = steering.clipping if report.clipping < 0 else report.clipping or None
    run.journal.change_config(window, samples, clipping, report.config)


def _newest_config(run: Run) -> int:
    return max(run.progress.steering.config, run.journal.config)


def _clipping_to_report(change: ConfigChangeLine | None) -> float:
    if change is None or not change.sets_clipping:
        return -1.0
    return change.gradient_clipping or 0.0

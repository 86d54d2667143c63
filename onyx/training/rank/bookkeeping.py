"""Counting a closed window, as an update or as a skip. Every rank counts the same."""

from onyx.accumulation.boundary import Update
from onyx.training.contract import event_kinds
from onyx.training.contract.errors import UserError
from onyx.training.contract.metrics_csv import PreferenceRow, Row, TokenRow
from onyx.training.rank.run import RankWindow, Run
from onyx.training.rank.vote import Agreed


def count_window(run: Run, window: RankWindow, agreed: Agreed, update: Update, *, seconds: float) -> None:
    """Move progress on by one window."""
    progress = run.progress
    progress.windows += 1
    progress.samples += window.samples
    progress.seconds += seconds
    progress.widest = max(progress.widest, *(each.widest for each in agreed.reports))
    progress.peaks = [each.peak for each in agreed.reports]
    if update.stepped:
        _count_update(run, window, agreed, update, seconds)
    else:
        _count_skip(run, window, update)


def _count_update(run: Run, window: RankWindow, agreed: Agreed, update: Update, seconds: float) -> None:
    progress = run.progress
    progress.update += 1
    progress.not_finite_in_a_row = 0
    progress.trained_tokens += window.tokens
    progress.epoch.add(agreed.loss, window.weight, agreed.correct)
    progress.last_loss = agreed.loss / window.weight
    details = {
        "seconds": seconds,
        "micro_batches": sum(each.micro_batches for each in agreed.reports),
        "micro_batch": max(each.widest for each in agreed.reports),
        "peak_bytes": max(progress.peaks),
    }
    row = _row(run, window, agreed, update, seconds)
    run.recorder.update(row, details, last=progress.epoch_is_over(run.order.count))


def _row(run: Run, window: RankWindow, agreed: Agreed, update: Update, seconds: float) -> Row:
    progress = run.progress
    row = Row(
        update=progress.update,
        epoch=progress.samples / run.order.count,
        samples=progress.samples,
        trained_tokens=progress.trained_tokens,
        loss=agreed.loss / window.weight,
        gradient_norm=update.norm,
        learning_rate=window.rate,
        tokens_per_second=window.tokens / seconds,
    )
    accuracy = agreed.correct / window.weight
    if run.attempt.spec.training.objective == "sft":
        return TokenRow(**vars(row), token_accuracy=accuracy)
    return PreferenceRow(**vars(row), reward_margin=agreed.margin / window.weight, preference_accuracy=accuracy)


def _count_skip(run: Run, window: RankWindow, update: Update) -> None:
    progress, events = run.progress, run.recorder.events
    where = {"window": window.number, "update": progress.update, "reason": update.skipped}
    if update.skipped == "no weight":
        progress.skipped_no_weight += 1
        events.emit(event_kinds.SKIP, "no label token in the whole window: no update", where)
        return
    progress.skipped_not_finite += 1
    progress.not_finite_in_a_row += 1
    events.emit(event_kinds.SKIP, "the gradient is not finite: no update", where, level="warn")
    if progress.not_finite_in_a_row > run.attempt.spec.training.max_skipped_in_a_row:
        raise UserError(
            "not_finite",
            f"the gradient was NaN or infinite in {progress.not_finite_in_a_row} windows in a row, after "
            f"{progress.update} updates: lower the learning rate, or look for extreme values in the data",
            param="training.learning_rate",
        )

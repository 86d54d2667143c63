"""Counting what became of a window. Every rank counts the same."""

from onyx.accumulation.boundary import Update
from onyx.training.contract import event_kinds
from onyx.training.contract.errors import UserError
from onyx.training.contract.metrics_csv import PreferenceRow, Row, TokenRow
from onyx.training.rank.run import RankWindow, Run
from onyx.training.rank.vote import Agreed


def count_window(run: Run, window: RankWindow, agreed: Agreed, update: Update, *, seconds: float) -> None:
    """Move on by one window, which was an update or a skip."""
    progress = run.progress
    progress.windows += 1
    progress.samples += window.samples
    progress.seconds += seconds
    progress.widest = max(progress.widest, *(each.widest for each in agreed.told))
    progress.peaks = [each.peak for each in agreed.told]
    if update.stepped:
        _stepped(run, window, agreed, update, seconds)
    else:
        _skipped(run, window, update)


def _stepped(run: Run, window: RankWindow, agreed: Agreed, update: Update, seconds: float) -> None:
    progress = run.progress
    progress.update += 1
    progress.not_finite_in_a_row = 0
    progress.trained_tokens += window.tokens
    progress.epoch.add(agreed.loss, window.weight, agreed.right)
    progress.last_loss = agreed.loss / window.weight
    details = {
        "seconds": seconds,
        "micro_batches": sum(each.micro_batches for each in agreed.told),
        "micro_batch": max(each.widest for each in agreed.told),
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
    accuracy = agreed.right / window.weight
    if run.attempt.spec.training.objective == "sft":
        return TokenRow(**vars(row), token_accuracy=accuracy)
    return PreferenceRow(**vars(row), reward_margin=agreed.margin / window.weight, preference_accuracy=accuracy)


def _skipped(run: Run, window: RankWindow, update: Update) -> None:
    progress = run.progress
    where = {"window": window.number, "update": progress.update, "reason": update.skipped}
    if update.skipped == "no weight":
        progress.skipped_no_weight += 1
        run.recorder.events.emit(event_kinds.SKIP, "no label token in the whole window: no update", where)
        return
    progress.skipped_not_finite += 1
    progress.not_finite_in_a_row += 1
    run.recorder.events.emit(event_kinds.SKIP, "the gradient is not finite: no update", where, level="warn")
    allowed = run.attempt.spec.training.max_skipped_in_a_row
    if progress.not_finite_in_a_row > allowed:
        raise UserError(
            "not_finite",
            f"the gradient was NaN or infinite in {progress.not_finite_in_a_row} windows in a row, after "
            f"{progress.update} updates: lower the learning rate, or look for extreme values in the data",
            param="training.learning_rate",
        )

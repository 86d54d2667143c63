"""The end of an epoch: evaluate, decide whether to go on, keep a snapshot.

It is done again when an attempt ends in the middle of it: nothing is counted before all of it is there.
"""

from typing import Any

from onyx.finite import finite
from onyx.training import event_kinds
from onyx.training.evaluate import evaluate
from onyx.training.progress import EpochSums, Progress
from onyx.training.run import Run
from onyx.training.snapshots import keep_snapshot


def close_epoch(run: Run) -> bool:
    """False when a rank was told to stop before it was done."""
    progress = run.progress
    entry: dict[str, Any] = {"epoch": len(progress.epochs) + 1, "update": progress.update}
    entry |= {"train_loss": progress.epoch.mean, "train_accuracy": progress.epoch.accuracy}
    if run.evaluation is not None:
        score = evaluate(run, run.evaluation)
        if score is None:
            return False
        entry |= {"evaluation_loss": finite(score.mean_loss), "evaluation_accuracy": finite(score.accuracy)}
        run.record.events.say(
            event_kinds.EVALUATION, f"epoch {entry['epoch']}: evaluation loss {score.mean_loss:.4f}", entry
        )
    if run.record.first:
        keep_snapshot(run, entry)
    _count(progress, entry, run.attempt.spec.training.early_stopping_patience)
    if progress.stopped_early:
        run.record.events.say(
            event_kinds.MESSAGE, f"stopped early: no better evaluation than {progress.best_evaluation:.4f}"
        )
    return True


def _count(progress: Progress, entry: dict[str, Any], patience: int | None) -> None:
    progress.epochs.append(entry)
    progress.epoch = EpochSums()
    loss = entry.get("evaluation_loss")
    if "evaluation_loss" not in entry:
        return
    if loss is not None and (progress.best_evaluation is None or loss < progress.best_evaluation):
        progress.best_evaluation = loss
        progress.evaluations_without_improvement = 0
    else:
        progress.evaluations_without_improvement += 1
    progress.stopped_early = patience is not None and progress.evaluations_without_improvement >= patience

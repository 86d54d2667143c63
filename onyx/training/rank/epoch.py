"""The end of an epoch (evaluate, keep a snapshot, decide about early stopping) and the end of the run.

Progress counts an epoch as closed only after all of that: when an attempt ends in between, the next one does it again.
"""

import math
from typing import Any

from onyx import fs
from onyx.finite import finite
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Result
from onyx.training.export.publish import keep_snapshot, publish
from onyx.training.rank.evaluate import evaluate
from onyx.training.rank.measurements import predicted_bytes, store_throughput, store_update_seconds
from onyx.training.rank.run import Run
from onyx.training.state.progress import EpochSums, Progress


def close_epoch(run: Run) -> bool:
    """Evaluate, keep a snapshot, count the epoch. False when a rank was asked to stop during the evaluation."""
    progress = run.progress
    entry: dict[str, Any] = {"epoch": len(progress.epochs) + 1, "update": progress.update}
    entry |= {"train_loss": progress.epoch.mean, "train_accuracy": progress.epoch.accuracy}
    if run.evaluation is not None:
        score = evaluate(run, run.evaluation)
        if score is None:
            return False
        entry |= {"evaluation_loss": finite(score.mean_loss), "evaluation_accuracy": finite(score.accuracy)}
        run.recorder.events.emit(
            event_kinds.EVALUATION, f"epoch {entry['epoch']}: evaluation loss {score.mean_loss:.4f}", entry
        )
    if run.recorder.first:
        keep_snapshot(run, entry)
    _count_epoch(progress, entry, run.attempt.spec.training.early_stopping_patience)
    if progress.stopped_early:
        run.recorder.events.emit(
            event_kinds.MESSAGE, f"stopped early: no better evaluation than {progress.best_evaluation:.4f}"
        )
    return True


def _count_epoch(progress: Progress, entry: dict[str, Any], patience: int | None) -> None:
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


def finish(run: Run) -> None:
    """Publish the model, then write result.json: where it is, the model is too."""
    store_throughput(run)
    if not run.ranks.first:
        return
    result = result_of(run)
    store_update_seconds(run)
    publish(run, result)
    fs.write_text(run.attempt.attempt_dir / "result.json", result.model_dump_json(indent=1))
    run.recorder.events.emit(event_kinds.MESSAGE, f"the model is published after {result.updates} updates")


def result_of(run: Run) -> Result:
    progress, spec = run.progress, run.attempt.spec
    losses = [entry["train_loss"] for entry in progress.epochs if entry["train_loss"] is not None]
    effective = min(progress.steering.window, run.order.count)
    planned = spec.accumulation_steps or run.attempt.plan.get("accumulation_steps")
    at_once = max(1, progress.widest) * len(run.attempt.shares)
    return Result(
        updates=progress.update,
        skipped=progress.skipped,
        samples=progress.samples,
        trained_tokens=progress.trained_tokens,
        seconds=progress.seconds,
        final_loss=progress.last_loss,
        best_loss=min(losses, default=None),
        best_evaluation_loss=progress.best_evaluation,
        epochs=progress.epochs,
        peak_bytes=progress.peaks,
        predicted_bytes=predicted_bytes(run.attempt),
        effective_batch=effective,
        micro_batch=max(1, progress.widest),
        accumulation_steps=int(planned) if planned else math.ceil(effective / at_once),
    )

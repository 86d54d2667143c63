"""The end of a run: the result, and the model under its name."""

import math

from onyx import fs
from onyx.training import event_kinds
from onyx.training.attempt import Result
from onyx.training.export import publish
from onyx.training.probe import keep_pace, keep_time, predicted_bytes
from onyx.training.run import Run


def finish(run: Run) -> None:
    """Publish the model, then say so: result.json is there when the model is."""
    keep_pace(run)
    if not run.ranks.first:
        return
    result = result_of(run)
    keep_time(run)
    publish(run, result)
    fs.write_text(run.attempt.attempt_dir / "result.json", result.model_dump_json(indent=1))
    run.record.events.say(event_kinds.MESSAGE, f"the model is published after {result.updates} updates")


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

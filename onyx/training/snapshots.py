"""Snapshots: a loadable model at the end of each epoch. The best and the last three are kept."""

import math
from pathlib import Path
from typing import Any

from onyx import fs
from onyx.training import event_kinds
from onyx.training.export import write_model
from onyx.training.run import Run

KEPT = 3


def keep_snapshot(run: Run, entry: dict[str, Any]) -> None:
    """Write the epoch's snapshot, then remove those that are neither the best nor among the last."""
    run.record.refuse_if_superseded()
    parent = run.attempt.job_dir / "snapshots"
    target = parent / f"epoch-{entry['epoch']}"
    with fs.publish_directory(target) as part:
        write_model(part, run.worker.model, run.tokenizer)
    entries = [*run.progress.epochs, entry]
    for number in superfluous(entries):
        old = parent / f"epoch-{number}"
        if old.exists():
            fs.remove(old)
    run.record.events.say(
        event_kinds.SNAPSHOT, f"epoch {entry['epoch']} is kept as {target.name}", entry | {"path": _name(target)}
    )


def superfluous(entries: list[dict[str, Any]]) -> list[int]:
    """The epochs whose snapshots are not kept. Entries are in the order of epochs."""
    best = min(entries, key=_loss)["epoch"]
    last = [entry["epoch"] for entry in entries[-KEPT:]]
    return [entry["epoch"] for entry in entries if entry["epoch"] not in (best, *last)]


def _loss(entry: dict[str, Any]) -> float:
    """What "best" goes by: evaluation where there is one."""
    loss = entry["evaluation_loss"] if "evaluation_loss" in entry else entry["train_loss"]
    return math.inf if loss is None else float(loss)


def _name(target: Path) -> str:
    return f"{target.parent.name}/{target.name}"

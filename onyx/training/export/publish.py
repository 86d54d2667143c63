"""Writes the finished model and each epoch's snapshot as directories that transformers (for adapters PEFT) loads."""

import contextlib
import math
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from onyx import fs
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Result
from onyx.training.contract.metrics_csv import read_rows
from onyx.training.export.model_card import model_card

if TYPE_CHECKING:
    from onyx.training.rank.run import Run

SHARD = "1GB"
"""Files are no larger, because transformers copies a file's tensors before it writes them."""


def publish(run: "Run", result: Result) -> Path:
    """Write the finished model with its card, atomically."""
    run.recorder.refuse_if_superseded()
    attempt, model = run.attempt, run.step.model
    training = attempt.spec.training
    if training.method == "lora" and training.merge_adapter:
        model = model.merge_and_unload()  # type: ignore[operator]
    target = attempt.job_dir / "model"
    with fs.publish_directory(target) as part:
        write_model(part, model, run.tokenizer)
        card = model_card(attempt, result, read_rows(attempt.job_dir / "metrics.csv"))
        fs.write_text(part / "README.md", card)
    return target


def write_model(folder: Path, model: nn.Module, tokenizer: Any) -> None:
    """Weights in safetensors, config and tokenizer."""
    options = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {"max_shard_size": SHARD}
    with _memory_for_copies():
        model.save_pretrained(folder, **options)  # type: ignore[operator]
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _memory_for_copies() -> Iterator[None]:
    """Lift the memory limit: it exists to make training cut finer, and saving cannot be cut."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


KEPT_SNAPSHOTS = 3


def keep_snapshot(run: "Run", entry: dict[str, Any]) -> None:
    """Write the epoch's snapshot, then remove those that are neither the best nor among the last KEPT_SNAPSHOTS."""
    run.recorder.refuse_if_superseded()
    parent = run.attempt.job_dir / "snapshots"
    target = parent / f"epoch-{entry['epoch']}"
    with fs.publish_directory(target) as part:
        write_model(part, run.step.model, run.tokenizer)
    entries = [*run.progress.epochs, entry]
    for number in expired_snapshots(entries):
        old = parent / f"epoch-{number}"
        if old.exists():
            fs.remove(old)
    run.recorder.events.emit(
        event_kinds.SNAPSHOT,
        f"epoch {entry['epoch']} is kept as {target.name}",
        entry | {"path": f"{parent.name}/{target.name}"},
    )


def expired_snapshots(entries: list[dict[str, Any]]) -> list[int]:
    """The epochs whose snapshots are removed. Entries are in the order of epochs."""
    best = min(entries, key=_loss)["epoch"]
    last = [entry["epoch"] for entry in entries[-KEPT_SNAPSHOTS:]]
    return [entry["epoch"] for entry in entries if entry["epoch"] not in (best, *last)]


def _loss(entry: dict[str, Any]) -> float:
    """The evaluation loss if there is one, otherwise the training loss."""
    loss = entry["evaluation_loss"] if "evaluation_loss" in entry else entry["train_loss"]
    return math.inf if loss is None else float(loss)

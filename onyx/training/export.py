"""Publishing: a directory that transformers (and PEFT for adapters) loads as it is."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from onyx import fs
from onyx.training.attempt import Result
from onyx.training.card import model_card
from onyx.training.metrics import read_rows
from onyx.training.run import Run

SHARD = "1GB"
"""transformers copies a file's tensors before it writes them: so files are no larger than this."""


def publish(run: Run, result: Result) -> Path:
    """The finished model under its name: whole, or not there."""
    run.record.refuse_if_superseded()
    attempt, model = run.attempt, run.worker.model
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
    """The limit is there to make training cut finer. Copies that nobody could cut finer pass it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

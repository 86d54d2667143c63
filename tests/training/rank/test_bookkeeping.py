"""Windows without an update are skipped and counted."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from onyx.training.contract.errors import UserError
from tests.training.job import POISON, Job, make_model, result_of, run_inline, write_data


def poisoned_model(home: Path) -> Path:
    """A model in which the embedding of one token is NaN."""
    model = make_model(home, tie_word_embeddings=False)
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = math.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


def test_a_window_that_is_not_a_number_is_skipped(job: Job, home: Path, tmp_path: Path) -> None:
    job.model = poisoned_model(tmp_path)
    job.data = write_data(tmp_path / "data", [9] * 24, poisoned=(3,))
    job.window, job.training = 4, {"epochs": 2}
    run = run_inline(job)
    assert (run.progress.update, run.progress.skipped_not_finite, run.progress.windows) == (10, 2, 12)
    assert result_of(job).skipped == 2
    skips = [event for event in job.events if event.kind == "skip"]
    assert [event.data["reason"] for event in skips] == ["not finite"] * 2
    assert len(job.rows()) == 10
    weights = job.weights()
    assert all(torch.isfinite(weights[name]).all() for name in weights if "embed" not in name)


def test_too_many_in_a_row_fail_the_job(job: Job, tmp_path: Path) -> None:
    job.model = poisoned_model(tmp_path)
    job.data = write_data(tmp_path / "data", [9] * 24, poisoned=tuple(range(24)))
    job.training = {"max_skipped_in_a_row": 2}
    with pytest.raises(UserError, match="3 windows in a row, after 0 updates") as caught:
        run_inline(job)
    assert caught.value.code == "not_finite"


def test_a_window_without_label_tokens_is_skipped_and_counted(job: Job, tmp_path: Path) -> None:
    job.data = write_data(tmp_path / "data", [9, 5, 7, 6], masked=(1, 2))
    job.window, job.training = 1, {"epochs": 2, "max_skipped_in_a_row": 1}
    run = run_inline(job)
    assert (run.progress.update, run.progress.skipped_no_weight) == (4, 4)

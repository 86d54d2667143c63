"""How many labels the model has right: counted once each, however a window is cut, and at no cost in memory."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.memory_cases import llama
from onyx.memory.counter import Counter
from onyx.memory.model import build
from onyx.memory.recipe import Recipe
from onyx.memory.step import IGNORED, blank_batch, loss_sum
from onyx.recipe.autocast import autocast
from onyx.recipe.precision import Precision
from onyx.training.accuracy import count_right, loss_and_right
from onyx.training.compiled import CompiledLoss
from onyx.training.metrics import read_rows
from onyx.training.objective import Imitate
from onyx.training.run import Run
from onyx.training.samples import batch_of
from tests.training.conftest import LENGTHS
from tests.training.job import Job, inline, run_inline


def test_labels_that_do_not_count_are_not_right() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 1.0], [5.0, 0.0, 0.0]])
    assert count_right(logits, torch.tensor([1, 2, 2, IGNORED])).item() == 2


def test_training_and_evaluation_count_alike(job: Job) -> None:
    with inline(job) as run:
        batch = batch_of(run.worker.samples, np.arange(16), run.worker.device)
        measured = Imitate().measure(run.worker.model, batch)
        loss, right = Imitate().score(run.worker.model, batch)
    assert measured.sums is not None
    assert measured.sums.tolist() == [right.item()]
    assert measured.loss.item() == pytest.approx(loss.item())


def right_one_by_one(run: Run) -> int:
    """Of all samples, before this attempt learns anything."""
    samples, count = run.worker.samples, 0
    for index in range(len(LENGTHS)):
        tokens, labels = samples.sample(index)  # type: ignore[union-attr]
        with torch.no_grad():
            likeliest = run.worker.model(input_ids=torch.from_numpy(tokens)[None]).logits[0].argmax(-1)
        count += sum(int(likeliest[at - 1]) == label for at, label in enumerate(labels) if at and label != IGNORED)
    return count


def test_no_cut_and_no_rank_changes_the_count(job: Job) -> None:
    job.training = {"epochs": 6}
    run_inline(job)
    job.model = job.dir / "model"  # one that has something right
    job.window, job.training = len(LENGTHS), {"epochs": 1}
    with inline(job.twin("before")) as run:
        expected = right_one_by_one(run) / int(run.worker.samples.weights.sum())
    assert 0 < expected < 1
    cuts = {"alone": [1], "some": [100], "whole": [10_000], "ranks": [64, 300]}
    found = {
        name: read_rows(job.twin(name, budgets=budgets).finish().dir / "metrics.csv") for name, budgets in cuts.items()
    }
    assert {name: float(rows[0]["token_accuracy"]) for name, rows in found.items()} == dict.fromkeys(cuts, expected)


def test_an_epoch_has_the_mean_over_its_label_tokens(job: Job) -> None:
    job.training = {"epochs": 6}
    run = run_inline(job)
    first, *_, last = run.progress.epochs
    assert 0 <= first["train_accuracy"] < last["train_accuracy"] <= 1
    per_update = [float(row["token_accuracy"]) for row in read_rows(job.dir / "metrics.csv")[-10:]]
    assert min(per_update) <= last["train_accuracy"] <= max(per_update)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_counting_is_never_the_peak(precision: Precision) -> None:
    config = llama(depth=2)
    model = build(config, Recipe(model=config), "cpu")
    batch = blank_batch(3, 64, causal=True)
    peaks = []
    for forward in (loss_sum, lambda *given: loss_and_right(*given)[0]):
        with Counter() as counter:
            with autocast(precision, "cpu"):
                loss = forward(model, batch)
            loss.backward()
        peaks.append(counter.peak)
        model.zero_grad(set_to_none=True)
    assert peaks[0] == peaks[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_step_counts_alike(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(job)
    job.model = job.dir / "model"  # one that has something right
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # put back what was there
    compiled = CompiledLoss(tmp_path / "compiled")
    with inline(job.twin("compiled")) as run:
        batch = batch_of(run.worker.samples, np.arange(16), run.worker.device)
        (loss, right), (expected, number) = (take(run.worker.model, batch) for take in (compiled, loss_and_right))
    assert right.item() == number.item() > 0
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

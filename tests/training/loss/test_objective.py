"""Objectives: DPO's loss, and that no cut of a window changes its gradient."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.memory_cases import llama
from onyx.memory.footprint.live_bytes import Counter
from onyx.memory.footprint.model_builder import build
from onyx.memory.footprint.training_step import IGNORED, blank_batch, loss_sum
from onyx.memory.recipe import Recipe
from onyx.recipe.model import autocast
from onyx.recipe.precision import Precision
from onyx.training.contract.metrics_csv import read_rows
from onyx.training.contract.spec import TrainingSpec
from onyx.training.data.token_store import PreferencePairs
from onyx.training.loss.compiled_loss import CompiledLoss
from onyx.training.loss.objective import (
    PreferenceObjective,
    SupervisedObjective,
    count_correct,
    loss_and_correct,
    objective_of,
)
from onyx.training.packing.cut import shares
from onyx.training.packing.samples import batch_of
from onyx.training.rank.reference import make_reference, missing_stretches
from onyx.training.rank.run import Run
from onyx.training.rank.share import run_share
from tests.training.conftest import LENGTHS
from tests.training.job import Job, inline, make_model, run_inline, write_pairs

SAME = 1e-6
"""Largest norm of the difference over the norm."""


def pairs_of(run: Run) -> PreferencePairs:
    assert isinstance(run.step.samples, PreferencePairs)
    return run.step.samples


def answer(run: Run, row: int) -> float:
    """The log-probability of one answer, token by token."""
    tokens, labels = pairs_of(run).answers.sample(row)
    with torch.no_grad():
        logits = run.step.model(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0].double()
    chances = logits.log_softmax(-1)
    return sum(float(chances[at - 1, label]) for at, label in enumerate(labels) if at and label != -100)


def test_the_objective_follows_the_spec() -> None:
    assert isinstance(objective_of(TrainingSpec()), SupervisedObjective)
    assert objective_of(TrainingSpec(objective="dpo", dpo_beta=0.3)) == PreferenceObjective(0.3)


def test_the_loss_is_that_of_the_paper(preference_job: Job) -> None:
    with inline(preference_job) as run:
        pairs, model = pairs_of(run), run.step.model.eval()
        pairs.reference[:] = np.random.default_rng(0).normal(-30, 5, pairs.reference.shape)
        chosen = np.array([3, 0, 7])
        measured = PreferenceObjective(0.4).measure(model, batch_of(pairs, chosen, run.step.device))
        score = PreferenceObjective(0.4).score(model, batch_of(pairs, chosen, run.step.device))
        expected = []
        for pair in chosen.tolist():
            rewards = [0.4 * (answer(run, 2 * pair + half) - pairs.reference[pair, half]) for half in (0, 1)]
            expected.append(float(rewards[0] - rewards[1]))
    assert measured.loss.item() == pytest.approx(sum(math.log1p(math.exp(-each)) for each in expected), rel=1e-5)
    assert measured.sums is not None
    assert measured.sums.tolist() == pytest.approx([sum(expected), sum(each > 0 for each in expected)], rel=1e-5)
    assert [each.item() for each in score] == pytest.approx([measured.loss.item(), measured.sums[1].item()])


def gradient(run: Run, chosen: list[np.ndarray], budget: int, weight: int) -> torch.Tensor:
    """The gradient of a window whose ranks ran these shares one after the other."""
    for each in run.step.parameters:
        each.grad = None
    for share in chosen:
        run_share(run.step, share, budget=budget, weight=weight, update=0)
    return torch.cat([each.grad.flatten() for each in run.step.parameters if each.grad is not None])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.tuples(*[st.integers(1, 20)] * 3), min_size=1, max_size=12),
    budget=st.integers(1, 300),
    parts=st.lists(st.floats(0.1, 1), min_size=1, max_size=3),
)
def test_no_cut_changes_the_gradient(
    job: Job, home: Path, tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, int, int]], budget: int,
    parts: list[float],
) -> None:  # fmt: skip
    """Pair by pair, some together, over several ranks: the gradient is that of all pairs at once."""
    out = tmp_path_factory.mktemp("pairs") / "data"
    like = job.twin(out.parent.name, data=write_pairs(out, lengths), model=make_model(home), window=len(lengths))
    like.training = {"objective": "dpo"}
    with inline(like) as run:
        pairs = pairs_of(run)
        pairs.reference[:] = np.random.default_rng(1).normal(-20, 3, pairs.reference.shape)
        window = np.arange(len(pairs))
        whole = gradient(run, shares(window, pairs.lengths, [1.0], budget), 10**6, len(pairs))
        cut = gradient(run, shares(window, pairs.lengths, parts, budget), budget, len(pairs))
    assert float((cut - whole).norm() / whole.norm()) <= SAME


@pytest.mark.parametrize("method", ["full", "lora"])
def test_it_learns_what_is_preferred(preference_job: Job, method: str) -> None:
    rate = 3e-3 if method == "full" else 2e-2
    preference_job.training |= {"epochs": 6, "method": method, "learning_rate": rate, "dpo_beta": 0.5}
    run = run_inline(preference_job)
    rows = read_rows(preference_job.dir / "metrics.csv")
    assert list(rows[0])[:8] == [
        "update", "epoch", "samples", "trained_tokens", "loss", "gradient_norm", "learning_rate", "tokens_per_second",
    ]  # fmt: skip
    assert float(rows[0]["loss"]) == pytest.approx(math.log(2), abs=0.05)
    assert float(rows[-1]["loss"]) < 0.3
    assert float(rows[-1]["reward_margin"]) > 1
    assert float(rows[-1]["preference_accuracy"]) == 1
    assert run.progress.samples == 6 * 36
    assert run.progress.trained_tokens == 6 * int(pairs_of(run).tokens.sum())
    last = run.progress.epochs[-1]
    assert last["evaluation_loss"] < 0.4
    assert last["evaluation_accuracy"] == 1
    metrics = [event for event in preference_job.events if event.kind == "metrics"]
    assert metrics[-1].data["reward_margin"] == float(rows[-1]["reward_margin"])


def test_the_first_window_knows_no_preference_yet(preference_job: Job, home: Path) -> None:
    """Without dropout the policy is its own reference: every margin is 0 but for rounding."""
    preference_job.model = make_model(home)
    with inline(preference_job) as run:
        assert make_reference(run, missing_stretches(run))
        window = run.next_window()
        share = run_share(run.step, window.share, budget=128, weight=window.weight, update=0)
    assert window.weight == 8
    assert share.window.losses / 8 == pytest.approx(math.log(2), abs=1e-4)


def test_labels_that_do_not_count_are_not_right() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 1.0], [5.0, 0.0, 0.0]])
    assert count_correct(logits, torch.tensor([1, 2, 2, IGNORED])).item() == 2


def test_training_and_evaluation_count_alike(job: Job) -> None:
    with inline(job) as run:
        batch = batch_of(run.step.samples, np.arange(16), run.step.device)
        measured = SupervisedObjective().measure(run.step.model, batch)
        loss, right = SupervisedObjective().score(run.step.model, batch)
    assert measured.sums is not None
    assert measured.sums.tolist() == [right.item()]
    assert measured.loss.item() == pytest.approx(loss.item())


def right_one_by_one(run: Run) -> int:
    """Correct label tokens of all samples, before the attempt trains."""
    samples, count = run.step.samples, 0
    for index in range(len(LENGTHS)):
        tokens, labels = samples.sample(index)  # type: ignore[union-attr]
        with torch.no_grad():
            likeliest = run.step.model(input_ids=torch.from_numpy(tokens)[None]).logits[0].argmax(-1)
        count += sum(int(likeliest[at - 1]) == label for at, label in enumerate(labels) if at and label != IGNORED)
    return count


def test_no_cut_and_no_rank_changes_the_count(job: Job) -> None:
    job.training = {"epochs": 6}
    run_inline(job)
    job.model = job.dir / "model"  # one that has something right
    job.window, job.training = len(LENGTHS), {"epochs": 1}
    with inline(job.twin("before")) as run:
        expected = right_one_by_one(run) / int(run.step.samples.weights.sum())
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
    for forward in (loss_sum, lambda *given: loss_and_correct(*given)[0]):
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
        batch = batch_of(run.step.samples, np.arange(16), run.step.device)
        (loss, right), (expected, number) = (take(run.step.model, batch) for take in (compiled, loss_and_correct))
    assert right.item() == number.item() > 0
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

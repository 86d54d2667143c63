"""Evaluation: its sums are right, it changes nothing, and a stop leaves it to the next attempt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from onyx.memory.footprint.training_step import Batch
from onyx.training.contract.child_process import StopFlag
from onyx.training.data.token_store import PreparedSamples
from onyx.training.packing.samples import batch_of
from onyx.training.rank.evaluate import evaluate
from onyx.training.rank.loop import Ending, train
from tests.training.job import Job, inline, make_model, result_of, run_inline, same, write_data


def test_evaluation_trains_nothing_and_takes_no_random_number(job: Job, tmp_path: Path) -> None:
    job.model = make_model(tmp_path, attention_dropout=0.5)
    job.data = write_data(tmp_path / "data", [9, 5, 7, 6, 12, 3], evaluation=3)
    with inline(job) as run:
        held = run.evaluation
        assert isinstance(held, PreparedSamples)
        before = {name: value.clone() for name, value in run.step.model.state_dict().items()}
        state = torch.get_rng_state()
        score = evaluate(run, held)
    assert score is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert same(before, dict(run.step.model.state_dict()))
    assert all(each.grad is None for each in run.step.parameters)
    assert run.step.model.training
    assert score.tokens == held.weights.sum()

    model = run.step.model.eval().requires_grad_(False)
    loss = correct = 0.0
    for index in range(3):
        tokens = torch.from_numpy(held.sample(index)[0])[None]
        logits = model(input_ids=tokens).logits[0, :-1]
        loss += float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum"))
        correct += float((logits.argmax(-1) == tokens[0, 1:]).sum())
    assert score.loss == pytest.approx(loss, rel=1e-5)
    assert score.correct == correct


def test_stopping_inside_of_an_evaluation_leaves_it_to_the_next_attempt(job: Job, tmp_path: Path) -> None:
    job.data = write_data(tmp_path / "data", [9] * 20, evaluation=4)
    job.training = {"epochs": 1}
    quiet = job.twin("quiet")
    run_inline(quiet)
    stop = StopFlag()
    with inline(job, stop) as run, pytest.MonkeyPatch.context() as patch:
        patch.setattr("onyx.training.rank.evaluate.batch_of", _then(stop, batch_of))
        assert train(run) is Ending.STOPPED
    assert run.progress.samples == 16
    assert run.progress.epochs == []
    again = run_inline(job)
    assert again.progress.epochs == result_of(quiet).epochs
    assert same(job.weights(), quiet.weights())


def _then(stop: StopFlag, act: Callable[..., Batch]) -> Callable[..., Batch]:
    def acted(*arguments: Any, **options: Any) -> Batch:
        stop.requested = True
        return act(*arguments, **options)

    return acted

"""One rank in this process: skips, evaluation, changes of config, what is published."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from onyx.memory.footprint.training_step import Batch
from onyx.training.contract.attempt import Result
from onyx.training.contract.child_process import StopFlag
from onyx.training.contract.errors import SupersededError, UserError
from onyx.training.data.token_store import PreparedSamples
from onyx.training.export.publish import expired_snapshots
from onyx.training.packing.samples import batch_of
from onyx.training.rank.evaluate import evaluate
from onyx.training.rank.loop import Ending, train
from tests.training.conftest import LENGTHS
from tests.training.job import POISON, Job, inline, make_model, run_inline, same, write_data


def result(job: Job) -> Result:
    return Result.model_validate_json((job.attempt_dir / "result.json").read_bytes())


def poisoned_model(home: Path) -> Path:
    """A model to which one token is not a number."""
    model = make_model(home, tie_word_embeddings=False)
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = math.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


def test_it_learns(job: Job) -> None:
    job.training = {"epochs": 6}
    run_inline(job)
    found = result(job)
    assert found.updates == 60
    assert found.final_loss is not None
    first = float(job.rows()[0].split(",")[4])
    assert found.final_loss < 0.7 * first
    assert [entry["epoch"] for entry in found.epochs] == [1, 2, 3, 4, 5, 6]
    assert found.best_loss == min(entry["train_loss"] for entry in found.epochs)
    assert found.trained_tokens == 6 * sum(LENGTHS)


def test_the_cut_does_not_change_the_update(job: Job) -> None:
    """Each sample alone, some together, the whole window at once: the same gradient, so the same norm."""
    job.window, job.training = 80, {"epochs": 1}
    norms = []
    for budget in (1, 100, 10_000):
        cut = job.twin(f"cut-{budget}", budgets=[budget])
        run_inline(cut)
        norms.append(float(cut.rows()[0].split(",")[5]))
    assert norms == pytest.approx([norms[-1]] * 3, rel=1e-5)


def test_a_window_that_is_not_a_number_is_skipped(job: Job, home: Path, tmp_path: Path) -> None:
    job.model = poisoned_model(tmp_path)
    job.data = write_data(tmp_path / "data", [9] * 24, poisoned=(3,))
    job.window, job.training = 4, {"epochs": 2}
    run = run_inline(job)
    assert (run.progress.update, run.progress.skipped_not_finite, run.progress.windows) == (10, 2, 12)
    assert result(job).skipped == 2
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


def test_no_better_evaluation_stops_early(job: Job, tmp_path: Path) -> None:
    """The evaluation samples follow another rule, so that learning this one makes them worse."""
    job.data = write_data(tmp_path / "data", [20] * 24, evaluation=4)
    mask = np.load(job.data / "tokens.npy")
    mask[-80:] = np.random.default_rng(3).integers(0, 250, 80)
    np.save(job.data / "tokens.npy", mask)
    job.training = {"epochs": 50, "early_stopping_patience": 2, "schedule": "constant", "learning_rate": 0.01}
    run = run_inline(job)
    assert run.progress.stopped_early
    epochs = result(job).epochs
    assert len(epochs) < 50
    losses = [entry["evaluation_loss"] for entry in epochs]
    assert min(losses) == losses[-3]
    kept = sorted(path.name for path in (job.dir / "snapshots").iterdir())
    assert kept == sorted(f"epoch-{number}" for number in range(len(epochs) - 2, len(epochs) + 1))


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
    assert again.progress.epochs == result(quiet).epochs
    assert same(job.weights(), quiet.weights())


def _then(stop: StopFlag, act: Callable[..., Batch]) -> Callable[..., Batch]:
    def acted(*arguments: Any, **options: Any) -> Batch:
        stop.requested = True
        return act(*arguments, **options)

    return acted


@pytest.mark.parametrize(
    ("losses", "gone"),
    [([3, 2, 1], []), ([1, 2, 3, 4], []), ([1, 2, 3, 4, 5], [2]), ([5, 4, 3, 2, 1], [1, 2]), ([None] * 5, [2])],
)
def test_the_best_and_the_last_three_snapshots_are_kept(losses: list[float | None], gone: list[int]) -> None:
    entries = [{"epoch": number + 1, "train_loss": loss} for number, loss in enumerate(losses)]
    assert expired_snapshots(entries) == gone


def test_config_changes_at_the_next_window_and_again_when_it_is_done_again(job: Job) -> None:
    quiet = job.twin("quiet", number=1)
    quiet.write_attempt()
    (quiet.attempt_dir / "control.json").write_text('{"seq": 3, "accumulation_steps": 4, "gradient_clipping": null}')
    quiet.number = 0
    run = run_inline(quiet)
    (event,) = [event for event in quiet.events if event.kind == "config"]
    assert event.data == {"window": 1, "samples": 16, "clipping": None, "config": 3, "budgets": None}
    assert [int(row.split(",")[2]) for row in quiet.rows()][:4] == [8, 24, 40, 56]
    assert run.progress.steering.clipping is None

    job.number = 1
    job.write_attempt()
    (job.attempt_dir / "events.jsonl").write_bytes((quiet.attempt_dir / "events.jsonl").read_bytes())
    again = run_inline(job)
    assert again.progress.steering == run.progress.steering
    assert same(job.weights(), quiet.weights())


def test_an_attempt_that_is_not_the_latest_saves_nothing(job: Job) -> None:
    (job.dir / "attempts" / "2").mkdir(parents=True)
    with pytest.raises(SupersededError, match="attempt 2 holds this job"):
        run_inline(job)
    assert list((job.dir / "checkpoints").iterdir()) == []


def test_a_spoilt_checkpoint_is_passed_over(job: Job) -> None:
    run_inline(job)
    newest = job.dir / "checkpoints" / "update-00000020" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    with inline(job) as run:
        assert run.progress.update == 15


def test_the_learning_rate_rule_is_applied_once(job: Job) -> None:
    job.training = {"learning_rate_rule": "linear", "schedule": "constant", "learning_rate": 1e-3}
    with inline(job) as run:
        assert run.next_window().rate == 2e-3


def test_state_is_plain_json(job: Job) -> None:
    run_inline(job)
    state = json.loads((job.dir / "checkpoints" / "update-00000020" / "state.json").read_text())
    assert state["update"] == 20
    assert state["samples"] == 160
    assert state["steering"]["budgets"] == [128]

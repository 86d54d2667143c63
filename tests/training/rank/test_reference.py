"""The reference: correct, computed once, and not lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onyx.memory.footprint.training_step import Batch
from onyx.training.contract.child_process import StopFlag
from onyx.training.contract.errors import UserError
from onyx.training.data.token_store import PreferencePairs
from onyx.training.packing.samples import batch_of
from onyx.training.rank import reference
from onyx.training.rank.loop import Ending, train
from onyx.training.rank.reference import missing_stretches
from onyx.training.rank.run import Run
from tests.training.job import Job, inline, run_inline, same
from tests.training.loss.test_objective import answer, pairs_of


def computed(job: Job) -> list[str]:
    """The stretches that the last attempt computed."""
    messages = [event.message for event in job.events if event.message.startswith("reference")]
    return [message.split(" of ")[1].split(" ")[0] for message in messages]


def make_reference(run: Run) -> bool:
    return reference.make_reference(run, missing_stretches(run))


def stored(job: Job) -> NDArray[np.float32]:
    paths = sorted(job.dir.glob("reference-*/training-*/log_probabilities.npy"))
    return np.concatenate([np.load(path) for path in paths])


@pytest.fixture
def stretched(preference_job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """36 pairs are three stretches."""
    monkeypatch.setattr(reference, "STRETCH", 16)
    return preference_job


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_reference_is_the_model_before_training_without_dropout(preference_job: Job, method: str) -> None:
    preference_job.training |= {"method": method, "lora": {"dropout": 0.5}}
    with inline(preference_job) as run:
        expected = [[answer_in_eval(run, 2 * pair + half) for half in (0, 1)] for pair in range(36)]
        if method == "lora":  # an adapter that would change the answer
            for name, each in run.step.model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(each.data)
        state = torch.get_rng_state()
        assert make_reference(run)
        assert torch.equal(torch.get_rng_state(), state)
        assert pairs_of(run).reference == pytest.approx(np.array(expected), rel=1e-5)
        assert isinstance(run.evaluation, PreferencePairs)
        assert np.isfinite(run.evaluation.reference).all()
        assert run.step.model.training
        assert all(each.requires_grad and each.grad is None for each in run.step.parameters)


def answer_in_eval(run: Run, row: int) -> float:
    run.step.model.eval()
    found = answer(run, row)
    run.step.model.train()
    return found


def test_a_resumed_attempt_reads_what_the_first_one_computed(stretched: Job) -> None:
    run_inline(stretched)
    assert computed(stretched) == ["training-00000000", "training-00000016", "training-00000032", "evaluation-00000000"]
    with inline(stretched) as run:
        assert run.progress.update == 10
        assert train(run) is Ending.DONE
    assert computed(stretched) == []
    assert np.array_equal(pairs_of(run).reference, stored(stretched))


def test_trained_weights_are_no_reference(preference_job: Job) -> None:
    run_inline(preference_job)
    for path in preference_job.dir.glob("reference-*/training-*/*.npy"):
        path.unlink()
    with inline(preference_job) as run, pytest.raises(UserError, match="start the job again") as error:
        make_reference(run)
    assert error.value.code == "reference_lost"


def test_an_adapter_can_be_switched_off_again(preference_job: Job) -> None:
    preference_job.training |= {"method": "lora", "learning_rate": 0.05}
    run_inline(preference_job)
    before = stored(preference_job)
    for path in preference_job.dir.glob("reference-*/training-*/*.npy"):
        path.unlink()
    with inline(preference_job) as run:
        assert make_reference(run)
    assert np.array_equal(pairs_of(run).reference, before)


def test_stopping_keeps_the_stretches_that_are_done(stretched: Job) -> None:
    quiet = stretched.twin("quiet")
    run_inline(quiet)
    stop = StopFlag()
    with inline(stretched, stop) as run, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "batch_of", _counting(batch_of, lambda calls: setattr(stop, "requested", calls > 12)))
        assert train(run) is Ending.STOPPED
    first = computed(stretched)
    assert 0 < len(first) < 4
    run_inline(stretched)
    assert len(first) + len(computed(stretched)) == 4
    assert same(stretched.weights(), quiet.weights())


def _counting(make: Callable[..., Batch], on_call: Callable[[int], None]) -> Callable[..., Batch]:
    calls = 0

    def made(*arguments: Any) -> Batch:
        nonlocal calls
        calls += 1
        on_call(calls)
        return make(*arguments)

    return made


def test_where_memory_runs_out_it_is_cut_finer(preference_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    preference_job.budgets = [10_000]
    sizes = []

    def short(samples: PreferencePairs, chosen: NDArray[np.int64], device: torch.device) -> Batch:
        sizes.append(len(chosen))
        if len(chosen) > 5:
            raise MemoryError
        return batch_of(samples, chosen, device)

    with inline(preference_job.twin("enough")) as run:
        make_reference(run)
    enough = pairs_of(run).reference
    monkeypatch.setattr(reference, "batch_of", short)
    with inline(preference_job) as run:
        assert make_reference(run)
    assert sizes[0] == 36
    assert pairs_of(run).reference == pytest.approx(enough, rel=1e-5)


def test_a_pair_that_does_not_fit_alone_is_the_users_to_change(
    preference_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> Batch:
        raise MemoryError

    monkeypatch.setattr(reference, "batch_of", short)
    with inline(preference_job) as run, pytest.raises(UserError, match="one pair of answers of 42 tokens"):
        make_reference(run)


def test_two_ranks_compute_it_together(preference_job: Job, home: Path) -> None:
    preference_job.training |= {"epochs": 1}
    alone = preference_job.twin("alone").finish()
    preference_job.budgets, preference_job.parts = [128, 64], [0.7, 0.3]
    preference_job.finish()
    assert stored(preference_job) == pytest.approx(stored(alone), rel=1e-5)
    assert len(preference_job.rows()) == len(alone.rows()) == 5

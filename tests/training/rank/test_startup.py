"""The start of an attempt: lowered budgets are in the journal, and measurements change nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from onyx.memory.planning.timing import Timing, device_timing_key, store_timing
from onyx.training.contract.attempt import Event
from onyx.training.contract.child_process import StopFlag
from onyx.training.loss.compiled_loss import CompiledLoss
from onyx.training.loss.objective import loss_and_correct
from onyx.training.rank import startup
from onyx.training.rank.loop import Ending, train
from onyx.training.rank.startup import graph_shapes, worst_shapes
from onyx.training.rank.step import RankStep
from onyx.training.state.journal import JournalLine, Place
from tests.training import uneven_kernels
from tests.training.job import Job, inline, run_inline, same, write_data


@pytest.fixture(autouse=True)
def _uneven() -> Iterator[None]:
    uneven_kernels.install()
    yield
    uneven_kernels.uninstall()


def test_products_depend_on_the_number_of_rows_and_on_nothing_else() -> None:
    one, other = torch.rand(8, 16), torch.rand(16, 5)
    whole = one @ other
    assert torch.equal(whole, one @ other)
    for rows in (1, 2, 4, 7):
        assert not torch.equal(whole[:rows], one[:rows] @ other)
    torch.testing.assert_close(whole[:4], one[:4] @ other, rtol=1e-6, atol=0)


def lines(job: Job, kind: str = "memory") -> list[Event]:
    return [event for event in job.events if event.kind == kind and "window" in event.data]


def test_budgets_that_a_lost_attempt_halved_are_in_the_journal(preference_job: Job) -> None:
    """Also before the first checkpoint, and for the reference. Otherwise a later attempt would cut differently."""
    preference_job.memory_losses = 1
    preference_job.training |= {"epochs": 1}
    run_inline(preference_job)
    (event,) = lines(preference_job)
    assert JournalLine.model_validate(
        {name: event.data[name] for name in JournalLine.model_fields if name in event.data}
    ) == JournalLine(window=0, stretch=0, budgets=(64,))
    replay = preference_job.twin("replay", memory_losses=0)
    replay.number = 1
    replay.attempt_dir.mkdir(parents=True)
    (replay.attempt_dir / "events.jsonl").write_bytes((preference_job.attempt_dir / "events.jsonl").read_bytes())
    run_inline(replay)
    assert lines(replay) == []
    assert same(replay.weights(), preference_job.weights())
    other = preference_job.twin("other", memory_losses=0)
    run_inline(other)
    assert not same(other.weights(), preference_job.weights())


def test_a_lost_attempt_moves_no_sample_to_another_rank(job: Job) -> None:
    """The plan alone decides which rank trains which sample."""
    job.budgets, job.parts = [128, 128], [0.6, 0.4]
    shares = []
    for losses in (0, 3):
        job.memory_losses = losses
        with inline(job) as run:
            shares.append(run.next_window().share.tolist())
    assert shares[0] == shares[1]


def test_an_evaluation_that_is_done_comes_before_what_an_attempt_lowers(job: Job, tmp_path: Path) -> None:
    job.data = write_data(tmp_path / "data", [5, 9, 12] * 8, evaluation=4)
    with inline(job) as run:
        run.progress.windows, run.progress.samples = 3, run.order.count
        assert run.place() == Place(window=3, evaluation=True)
        run.progress.epochs.append({"epoch": 1})
        assert run.place() == Place(window=3, evaluation=False)


def compiled(job: Job, home: Path, patch: pytest.MonkeyPatch) -> Job:
    """A job whose plan compiles, without the compiler, which takes long. test_compiled_loss runs it."""

    def plain(loss: CompiledLoss, _: Path) -> None:
        loss._loss, loss.failed = loss_and_correct, None

    patch.setattr(CompiledLoss, "__init__", plain)
    patch.setattr(CompiledLoss, "freeze", lambda _: None)  # it would affect the whole process
    return job.twin("compiled", compile_dir=home / "compiled", training={"epochs": 1})


def test_a_step_that_could_not_be_compiled_is_not_compiled_later(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = compiled(job, tmp_path, monkeypatch)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    with inline(broken) as run, pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "graph_shapes", fail)
        startup.start(run, run.place())
        assert run.progress.steering.eager
    assert [event.data["eager"] for event in lines(broken, "message")] == [True]
    monkeypatch.setattr(startup, "graph_shapes", lambda *_, **__: pytest.fail("compiled again"))
    again = run_inline(broken)
    assert again.progress.steering.eager
    plain = job.twin("plain", training={"epochs": 1})
    run_inline(plain)
    assert same(plain.weights(), broken.weights())


def test_graphs_are_those_of_the_plan_whatever_the_budget_is(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph is made for the numbers of its first shape: an attempt with a lower budget must not make another."""
    shaped = compiled(job, tmp_path, monkeypatch)
    made: list[tuple[int, int]] = []

    def make(_: object, compiled: CompiledLoss, budget: int, window: int, *__: object) -> None:
        made.append((budget, window))

    monkeypatch.setattr(startup, "make_graphs", make)
    for budget in (128, 32):
        with inline(shaped) as run:
            lower = {"budgets": (budget,), "window": budget // 16}
            run.progress.steering = run.progress.steering.model_copy(update=lower)
            startup.start(run, run.place())
    assert made == [(128, 8)] * 2


def test_a_shape_that_does_not_fit_beside_the_compiler_is_not_made_smaller(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = compiled(job, tmp_path, monkeypatch)
    fits = startup.fits
    tries: list[tuple[int, int]] = []

    def fits_after_the_first(step: RankStep, samples: int, length: int, seconds: dict[int, float]) -> bool:
        tries.append((samples, length))
        return len(tries) > 1 and fits(step, samples, length, seconds)

    monkeypatch.setattr(startup, "fits", fits_after_the_first)
    with inline(small) as run:
        startup.start(run, run.place())
        assert run.progress.steering.eager


def test_after_an_end_without_memory_nothing_is_compiled(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = compiled(job, tmp_path, monkeypatch)
    lost.memory_losses = 1
    monkeypatch.setattr(startup, "graph_shapes", lambda *_, **__: pytest.fail("compiled"))
    with inline(lost) as run:
        startup.start(run, run.place())
    (event,) = lines(lost)
    assert (event.data["budgets"], event.data["eager"]) == ([64], True)


def test_what_was_measured_changes_no_bit_of_a_job(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timings are for later plans: an attempt with other stored timings than the one before it goes on as planned."""
    monkeypatch.setenv("ONYX_HOME", str(tmp_path / "home"))
    job.plan = {"devices": [{"name": "CPU", "expected_peak": 40 * 2**20, "low": 30 * 2**20, "timing_key": "a-key"}]}
    job.training = {"epochs": 1}
    quiet = job.twin("quiet")
    run_inline(quiet)
    stop = StopFlag()
    with inline(job, stop) as run, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.recorder, "due", lambda update: setattr(stop, "requested", update >= 4))
        assert train(run) is Ending.STOPPED
    shutil.rmtree(tmp_path / "home")
    slow = Timing(per_micro_batch=9.0, per_token=9.0, per_update=9.0)
    store_timing("a-key", slow)
    store_timing(device_timing_key("a-key", "cpu:0", None), slow)
    run_inline(job)
    assert same(job.weights(), quiet.weights())


def test_worst_shapes_are_the_longest_and_the_largest() -> None:
    lengths = np.array([10, 60, 33, 10])
    assert worst_shapes(lengths, budget=100, window=50) == [(1, 60), (10, 10)]
    assert worst_shapes(lengths, budget=120, window=50) == [(2, 60)]
    assert worst_shapes(lengths, budget=100, window=2) == [(1, 60), (2, 33)]


def test_the_worst_of_joined_samples_fills_the_budget() -> None:
    lengths = np.array([10, 33, 60])
    assert worst_shapes(lengths, budget=100, window=50, joined=True) == [(2, 50)]
    assert worst_shapes(lengths, budget=120, window=50, joined=True) == [(2, 60)]
    assert worst_shapes(lengths, budget=1000, window=2, joined=True) == [(2, 60)]
    assert worst_shapes(lengths, budget=40, window=2, joined=True) == [(1, 60)]  # alone, whatever the budget


@pytest.mark.parametrize(
    ("lengths", "budget", "window", "shapes"),
    [
        ([8, 16], 64, 8, [(4, 16)]),
        ([8, 16], 20, 8, [(2, 16), (1, 16)]),  # the longest run alone
        ([16, 16], 1024, 16, [(17, 16)]),  # as many rows as tokens would make a graph for squares
    ],
)
def test_one_graph_for_several_rows_and_one_where_samples_run_alone(
    lengths: list[int], budget: int, window: int, shapes: list[tuple[int, int]]
) -> None:
    assert graph_shapes(np.array(lengths), budget, window) == shapes


def test_joined_samples_need_one_graph() -> None:
    assert graph_shapes(np.array([8, 16]), 20, 8, joined=True) == [(2, 10)]

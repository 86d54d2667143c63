"""Out of memory for real, by an rlimit. The update is that of a rank that had used the finer cut from the start."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onyx.memory.devices.device import Device
from onyx.training.contract.attempt import Event, Exit, attempt_dir
from onyx.training.contract.prepared import Planned
from onyx.training.data.token_store import open_data
from onyx.training.models.load import build_empty, load_config
from onyx.training.prepare.plan_job import plan_job
from tests.training.job import Job, make_model, same, write_data, write_pairs

MB = 2**20
LENGTHS = [int(length) for length in np.random.default_rng(1).integers(8, 65, size=64)]


@pytest.fixture
def tight(job: Job, home: Path) -> Job:
    """A large vocabulary: a micro-batch of 1024 padded tokens takes about 100 MB, one of 64 about 10. With dropout."""
    job.model = make_model(home, vocab_size=8192, attention_dropout=0.1)
    job.data = home / "data" / "tight"
    if not job.data.exists():
        write_data(job.data, LENGTHS)
    job.budgets, job.window, job.training = [1024], 16, {"epochs": 1}
    return job


def memory_for(megabytes: int) -> int:
    """Memory for the model, its optimizer, and this much more."""
    return 3 * 616_768 * 4 + megabytes * MB


def memory_events(job: Job) -> list[Event]:
    return [event for event in job.events if event.kind == "memory"]


def replayed(job: Job) -> Job:
    """The same job without a memory limit, cut by the first one's journal."""
    replay = job.twin("replay", memory=None)
    former = attempt_dir(replay.dir, 1)
    former.mkdir(parents=True)
    (former / "events.jsonl").write_bytes((job.attempt_dir / "events.jsonl").read_bytes())
    replay.number = 1
    replay.finish()
    assert memory_events(replay) == []
    return replay


def test_in_backward(tight: Job) -> None:
    tight.memory = [memory_for(85)]
    tight.finish()
    (event,) = memory_events(tight)
    assert (event.data["retries"], event.data["in_backward"]) == ([1], [1])
    assert event.data["budgets"][0] <= 512
    assert "ran out of memory 1 time (1 in backward)" in event.message
    assert same(tight.weights(), replayed(tight).weights())


def test_many_times_in_a_row_in_forward(tight: Job) -> None:
    tight.memory = [memory_for(18)]
    tight.finish()
    first = memory_events(tight)[0]
    assert first.data["retries"][0] >= 3
    assert first.data["retries"][0] > first.data["in_backward"][0]
    assert same(tight.weights(), replayed(tight).weights())


def test_on_one_rank_of_two(tight: Job) -> None:
    """The other rank waits at the vote and keeps its budget."""
    tight.budgets = [1024, 1024]
    tight.memory = [None, memory_for(25)]
    tight.finish()
    first = memory_events(tight)[0]
    assert first.data["retries"][0] == 0
    assert first.data["retries"][1] >= 1
    assert first.data["budgets"][0] == 1024
    assert first.data["budgets"][1] < 512
    assert same(tight.weights(), replayed(tight).weights())


def test_the_lower_budget_outlives_the_attempt(tight: Job) -> None:
    """Killed after memory ran out, resumed without a limit: the journal still decides the cut."""
    tight.memory = [memory_for(40)]
    tight.training = {"epochs": 2, "save_every_updates": 3}
    quiet = tight.twin("quiet").finish()
    pids = tight.start(hold=[5])
    tight.until_held(5)
    tight.signal(pids, signal.SIGKILL)
    tight.wait(pids)
    tight.memory = None
    tight.finish()
    assert memory_events(tight) == []
    assert same(tight.weights(), quiet.weights())


def test_a_sample_that_does_not_fit_alone_fails_the_job(tight: Job) -> None:
    tight.budgets = [1024, 1024]
    tight.memory = [memory_for(4), None]
    assert tight.run() == [Exit.USER_ERROR] * 2
    error = (tight.attempt_dir / "error.json").read_text()
    assert "out_of_memory" in error
    assert "cpu:0" in error


@pytest.fixture
def tight_pairs(tight: Job, home: Path) -> Job:
    """40 pairs, one stretch of the reference, which runs out of memory before any window does."""
    tight.data = home / "data" / "tight-pairs"
    if not tight.data.exists():
        random = np.random.default_rng(2)
        lengths = [(int(a), int(b), int(c)) for a, b, c in random.integers(4, 30, size=(40, 3))]
        write_pairs(tight.data, lengths)
    tight.training = {"epochs": 1, "objective": "dpo"}
    tight.memory = [memory_for(60)]
    return tight


def test_both_answers_of_a_pair_are_cut_together(tight_pairs: Job) -> None:
    """The journal's budget counts both answers, and a replay by the journal has the same bits."""
    tight_pairs.finish()
    first = memory_events(tight_pairs)[0]
    assert first.data["budgets"][0] <= 512
    assert first.data["stretch"] == 0
    replay = replayed(tight_pairs)
    assert reference_of(replay) == reference_of(tight_pairs)
    assert same(tight_pairs.weights(), replay.weights())


def reference_of(job: Job) -> bytes:
    """The stored stretch, with the file's header."""
    (path,) = job.dir.glob("reference-*/training-00000000/*.npy")
    return path.read_bytes()


def test_a_crash_before_the_journal_line_leaves_nothing_behind(tight_pairs: Job) -> None:
    """The next attempt has no memory limit: its result is that of a job that never ran out."""
    tight_pairs.hook = "tests.training.crash_points:before_the_journal_line"
    assert tight_pairs.run() == [-signal.SIGKILL]
    tight_pairs.hook = tight_pairs.memory = None
    tight_pairs.finish()
    assert reference_of(tight_pairs) == reference_of(tight_pairs.twin("roomy").finish())


def test_a_crash_after_the_journal_line_changes_nothing(tight_pairs: Job) -> None:
    """The next attempt has no memory limit, and cuts the stretch by the line of the crashed one."""
    quiet = tight_pairs.twin("quiet").finish()
    tight_pairs.hook = "tests.training.crash_points:before_the_stretch_is_stored"
    assert tight_pairs.run() == [-signal.SIGKILL]
    assert len(memory_events(tight_pairs)) == 1
    assert not list(tight_pairs.dir.glob("reference-*/training-*"))
    tight_pairs.hook = tight_pairs.memory = None
    tight_pairs.finish()
    assert reference_of(tight_pairs) == reference_of(quiet)
    roomy = tight_pairs.twin("roomy").finish()
    assert reference_of(roomy) != reference_of(quiet)  # otherwise the comparison above would show nothing


def test_in_an_evaluation_that_may_stop_the_job(tight: Job) -> None:
    """Held-out samples are longer than the others, so windows fit and evaluations do not."""
    tight.data = write_data(tight.home / "data", [9, 12, 7, 11] * 6 + [64] * 40, evaluation=40)
    tight.window, tight.memory = 8, [memory_for(40)]
    tight.hook = "tests.training.uneven_kernels:strongly"
    tight.training = {"epochs": 4, "early_stopping_patience": 1, "learning_rate": 0.05}
    tight.finish()
    first = memory_events(tight)[0]
    assert (first.data["window"], first.data["evaluation"]) == (3, True)
    assert first.data["budgets"][0] <= 512
    assert epochs_of(replayed(tight)) == epochs_of(tight)
    roomy = tight.twin("roomy", memory=None).finish()
    assert epochs_of(roomy)[0]["evaluation_loss"] != epochs_of(tight)[0]["evaluation_loss"]


def epochs_of(job: Job) -> list[dict[str, Any]]:
    epochs: list[dict[str, Any]] = json.loads((job.attempt_dir / "result.json").read_text())["epochs"]
    return epochs


def test_an_evaluation_of_what_does_not_fit_alone_fails_the_job(tight: Job) -> None:
    tight.data = write_data(tight.home / "data", [9, 12, 7, 11] * 6 + [256], evaluation=1)
    tight.window, tight.memory = 8, [memory_for(14)]
    assert tight.run() == [Exit.USER_ERROR]
    assert "one sample of 256 tokens does not fit" in (tight.attempt_dir / "error.json").read_text()


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_planned_job_of_pairs_never_runs_out(
    tight: Job, home: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner counts both answers: with the planned memory as the limit, nothing is cut finer."""
    monkeypatch.setenv("ONYX_HOME", str(home))
    tight.data = write_pairs(tight.home / "pairs", [(8, 30, 20), (4, 10, 44), (20, 28, 28)] * 40)
    tight.window, tight.training = 64, {"epochs": 1, "objective": "dpo", "method": method}
    planned = plan_pairs(tight)
    (share,) = planned.shares
    assert planned.plan["devices"][0]["micro_batch"] < 64
    assert share.token_budget == planned.plan["devices"][0]["token_budget"] < 64 * 2 * 48
    tight.budgets, tight.memory = [share.token_budget], [share.memory_bytes]
    tight.finish()
    assert memory_events(tight) == []
    widest = json.loads((tight.attempt_dir / "result.json").read_text())["micro_batch"]
    assert widest >= planned.plan["devices"][0]["micro_batch"]


def plan_pairs(job: Job) -> Planned:
    """What preparing the job would plan, on a slice of the CPU that its window does not fit."""
    data, config = open_data(job.data), load_config(job.model)
    small = Device(kind="cpu", index=0, name="CPU", memory_total=400 * MB, memory_free=400 * MB, cores=1)
    return plan_job(job.spec(), config, build_empty(config), data.lengths // data.rows, len(data), [small])

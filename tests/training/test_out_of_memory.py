"""Out of memory for real: an rlimit, no pretence. The update is that of a rank that had cut so from the start."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from onyx.memory.device import Device
from onyx.training.attempt import Event, Exit, attempt_dir
from onyx.training.data.pairs import open_data
from onyx.training.models.load import build_empty, load_config
from onyx.training.planning import plan_job
from onyx.training.prepared import Planned
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


def room(megabytes: int) -> int:
    """Memory for the model, its optimizer, and so much more."""
    return 3 * 616_768 * 4 + megabytes * MB


def memory_events(job: Job) -> list[Event]:
    return [event for event in job.events if event.kind == "memory"]


def replayed(job: Job) -> Job:
    """The same job with all the memory it wants, whose windows are cut as the journal says."""
    replay = job.twin("replay", memory=None)
    former = attempt_dir(replay.dir, 1)
    former.mkdir(parents=True)
    (former / "events.jsonl").write_bytes((job.attempt_dir / "events.jsonl").read_bytes())
    replay.number = 1
    replay.finish()
    assert memory_events(replay) == []
    return replay


def test_in_backward(tight: Job) -> None:
    tight.memory = [room(85)]
    tight.finish()
    (event,) = memory_events(tight)
    assert (event.data["retries"], event.data["in_backward"]) == ([1], [1])
    assert event.data["budgets"][0] <= 512
    assert "ran out of memory 1 time (1 in backward)" in event.message
    assert same(tight.weights(), replayed(tight).weights())


def test_many_times_in_a_row_in_forward(tight: Job) -> None:
    tight.memory = [room(14)]
    tight.finish()
    first = memory_events(tight)[0]
    assert first.data["retries"][0] >= 3
    assert first.data["retries"][0] > first.data["in_backward"][0]
    assert same(tight.weights(), replayed(tight).weights())


def test_on_one_rank_of_two(tight: Job) -> None:
    """The other waits at the vote, keeps its budget, and nobody hangs."""
    tight.budgets = [1024, 1024]
    tight.memory = [None, room(25)]
    tight.finish()
    first = memory_events(tight)[0]
    assert first.data["retries"][0] == 0
    assert first.data["retries"][1] >= 1
    assert first.data["budgets"][0] == 1024
    assert first.data["budgets"][1] < 512
    assert same(tight.weights(), replayed(tight).weights())


def test_the_lower_budget_outlives_the_attempt(tight: Job) -> None:
    """Killed after it ran out, resumed with all the memory there is: still cut as the journal says."""
    tight.memory = [room(40)]
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
    tight.memory = [room(4), None]
    assert tight.run() == [Exit.USER_ERROR] * 2
    error = (tight.attempt_dir / "error.json").read_text()
    assert "out_of_memory" in error
    assert "cpu:0" in error


def test_of_pairs_both_answers_are_cut_together(tight: Job, home: Path) -> None:
    """The journal's budget is of both answers; the update stays that of a rank that had cut so from the start."""
    tight.data = home / "data" / "tight-pairs"
    random = np.random.default_rng(2)
    lengths = [(int(a), int(b), int(c)) for a, b, c in random.integers(4, 30, size=(40, 3))]
    write_pairs(tight.data, lengths)
    tight.training = {"epochs": 1, "objective": "dpo"}
    tight.memory = [room(60)]
    tight.finish()
    first = memory_events(tight)[0]
    assert first.data["budgets"][0] <= 512
    assert same(tight.weights(), replayed(tight).weights())


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_planned_job_of_pairs_never_runs_out(
    tight: Job, home: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner's micro-batch counts both answers: with the planned memory enforced, nothing is cut finer."""
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

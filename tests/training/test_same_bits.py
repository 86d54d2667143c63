"""Whatever happens to a job's ranks, its final weights are those of the same job run undisturbed."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onyx.training.contract.attempt import Exit
from tests.training.job import Job, distance, make_model, same

UPDATES = 20

REACH = 3
"""A kill comes at a random moment within this many updates."""


@pytest.fixture
def dropout_job(job: Job, home: Path) -> Job:
    """With dropout, so that a resumed attempt must draw the same random numbers."""
    job.model = make_model(home, attention_dropout=0.2)
    return job


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def running(request: pytest.FixtureRequest, dropout_job: Job) -> Job:
    dropout_job.budgets = [128] if request.param == 1 else [128, 64]
    dropout_job.parts = None if request.param == 1 else [0.7, 0.3]
    return dropout_job


UNDISTURBED: dict[int, Job] = {}


def undisturbed(job: Job, home: Path) -> Job:
    """The same job, undisturbed. Run once for each number of ranks."""
    ranks = len(job.budgets)
    if ranks not in UNDISTURBED:
        UNDISTURBED[ranks] = job.twin("undisturbed", home=home / f"undisturbed-{ranks}").finish()
        assert len(UNDISTURBED[ranks].rows()) == UPDATES
    return UNDISTURBED[ranks]


def disturb(job: Job, moment: int, act: Callable[[list[int]], None]) -> list[int]:
    """Act on an attempt after so many updates of the job. Returns its ranks' exit statuses."""
    pids = job.start(hold=[moment])
    job.until_held(moment)
    act(pids)
    job.release(moment)
    return job.wait(pids)


def resumed_from(job: Job) -> int:
    """The update from which the last attempt resumed."""
    messages = [event for event in job.events if event.message.startswith("resumed from update")]
    return int(messages[0].data["update"]) if messages else 0


def check(job: Job, home: Path) -> None:
    quiet = undisturbed(job, home)
    assert same(job.weights(), quiet.weights())
    # All columns but the speed.
    columns = [[row.split(",")[:7] + row.split(",")[8:] for row in each.rows()] for each in (job, quiet)]
    assert columns[0] == columns[1]


def kill_some(job: Job, chance: random.Random, moments: list[int]) -> None:
    """SIGKILL one rank after each of these updates, then let the job finish."""
    for moment in moments:
        pids = job.start(hold=[moment, moment + REACH])
        job.until_held(moment)
        job.release(moment)
        time.sleep(chance.random() * 0.05)  # no more than REACH updates, however long this takes
        # Before the first update a rank may still wait for the killed one to start. The runner would end it: kill all.
        job.signal([chance.choice(pids)] if moment else pids, signal.SIGKILL)
        job.release(moment + REACH)
        assert Exit.SAVED not in job.wait(pids)
    job.finish()


@pytest.mark.parametrize("seed", [0])
def test_sigkill_of_a_rank_twice(running: Job, home: Path, seed: int) -> None:
    chance = random.Random(seed)
    kill_some(running, chance, sorted(chance.randint(6, UPDATES - 1 - REACH) for _ in range(2)))
    assert running.number == 3
    assert resumed_from(running) >= 5
    check(running, home)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_sigkill_of_a_rank_at_random_moments(running: Job, home: Path, seed: int) -> None:
    chance = random.Random(seed)
    moments = sorted(chance.randint(0, UPDATES - 1 - REACH) for _ in range(1 + seed % 2))
    kill_some(running, chance, moments)
    if moments[-1] > 6:
        assert resumed_from(running) >= 5
    check(running, home)


def test_sigterm_saves_the_last_update_and_leaves(running: Job, home: Path) -> None:
    """Pause, resume, pause at once, resume."""
    codes = disturb(running, 7, running.signal)
    assert codes == [Exit.SAVED] * len(running.budgets)
    done = len(running.rows())
    pids = running.start(hold=[0])
    running.until_held(0)
    running.signal(pids)  # before its first window
    running.release(0)
    codes = running.wait(pids)
    assert codes == [Exit.SAVED] * len(running.budgets)
    running.finish()
    assert resumed_from(running) == done
    check(running, home)


def test_sigterm_to_one_rank_stops_all(dropout_job: Job) -> None:
    dropout_job.budgets = [128, 128]
    codes = disturb(dropout_job, 3, lambda pids: dropout_job.signal(pids[1:]))
    assert codes == [Exit.SAVED] * 2


def test_another_number_of_ranks_goes_on_within_rounding(job: Job, home: Path) -> None:
    """Another plan: the same samples in the same order, and weights that differ by rounding."""
    alone = job.twin("alone").finish()
    job.budgets = [128, 64]
    assert disturb(job, 7, job.signal) == [Exit.SAVED] * 2
    job.budgets = [96]
    job.finish()
    assert resumed_from(job) >= 7
    assert distance(job.weights(), alone.weights()) < 1e-4
    samples = [[row.split(",")[:4] for row in each.rows()] for each in (job, alone)]
    assert samples[0] == samples[1]


def test_no_temporary_file_is_left(running: Job, home: Path) -> None:
    folder = undisturbed(running, home).dir
    assert list(folder.rglob(".*")) == []
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "update-00000015",
        "update-00000020",
    ]


@pytest.mark.parametrize(
    ("method", "budgets"), [("full", [96, 64]), ("lora", [96])], ids=["full, two ranks", "lora, one rank"]
)
def test_sigkill_of_a_job_that_learns_preferences(preference_job: Job, method: str, budgets: list[int]) -> None:
    """Killed before its reference is complete, and twice after: it is never computed from trained weights."""
    preference_job.budgets = budgets
    preference_job.training |= {"method": method, "epochs": 4, "save_every_updates": 3, "lora": {"dropout": 0.1}}
    quiet = preference_job.twin("quiet").finish()
    kill_some(preference_job, random.Random(0), [0, 5, 12])
    assert resumed_from(preference_job) >= 9
    assert len(quiet.rows()) == 20
    assert same(preference_job.weights(), quiet.weights())
    columns = [[row.split(",")[:7] + row.split(",")[8:] for row in each.rows()] for each in (preference_job, quiet)]
    assert columns[0] == columns[1]


def test_sigkill_while_the_window_grows(dropout_job: Job) -> None:
    """Its size follows from the update's number alone."""
    dropout_job.window, dropout_job.accumulation_steps = 16, 4
    dropout_job.training = {"accumulation_warmup": 12, "accumulation_scheduler": "cosine", "save_every_updates": 2}
    quiet = dropout_job.twin("quiet").finish()
    kill_some(dropout_job, random.Random(0), [4, 8])
    assert resumed_from(dropout_job) >= 6
    assert same(dropout_job.weights(), quiet.weights())
    assert [row.split(",")[:7] for row in dropout_job.rows()] == [row.split(",")[:7] for row in quiet.rows()]

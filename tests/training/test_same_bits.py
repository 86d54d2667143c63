"""It is not lost: whatever happens to its ranks, a job's final weights are those of the job that was left alone."""

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
"""Updates within which a kill comes, at some moment of them."""


@pytest.fixture
def dropping(job: Job, home: Path) -> Job:
    """With dropout, so that random numbers are part of what must come back."""
    job.model = make_model(home, attention_dropout=0.2)
    return job


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def running(request: pytest.FixtureRequest, dropping: Job) -> Job:
    dropping.budgets = [128] if request.param == 1 else [128, 64]
    dropping.parts = None if request.param == 1 else [0.7, 0.3]
    return dropping


UNDISTURBED: dict[int, Job] = {}


def undisturbed(job: Job, home: Path) -> Job:
    """The same job, left alone. Run once for each number of ranks."""
    ranks = len(job.budgets)
    if ranks not in UNDISTURBED:
        UNDISTURBED[ranks] = job.twin("undisturbed", home=home / f"undisturbed-{ranks}").finish()
        assert len(UNDISTURBED[ranks].rows()) == UPDATES
    return UNDISTURBED[ranks]


def disturb(job: Job, moment: int, act: Callable[[list[int]], None]) -> list[int]:
    """Do something to an attempt after so many updates of the job; how its ranks ended."""
    pids = job.start(hold=[moment])
    job.until_held(moment)
    act(pids)
    job.release(moment)
    return job.wait(pids)


def resumed_from(job: Job) -> int:
    """The update that the last attempt began with."""
    messages = [event for event in job.events if event.message.startswith("resumed from update")]
    return int(messages[0].data["update"]) if messages else 0


def check(job: Job, home: Path) -> None:
    quiet = undisturbed(job, home)
    assert same(job.weights(), quiet.weights())
    # All but the speed.
    told = [[row.split(",")[:7] + row.split(",")[8:] for row in each.rows()] for each in (job, quiet)]
    assert told[0] == told[1]


def kill_some(job: Job, chance: random.Random, moments: list[int]) -> None:
    """SIGKILL one rank at each of the moments, then let the job end."""
    for moment in moments:
        pids = job.start(hold=[moment, moment + REACH])
        job.until_held(moment)
        job.release(moment)
        time.sleep(chance.random() * 0.05)  # no more than REACH updates, however long this takes
        # Before the first update ranks may not have met yet: then it is the runner that ends those who wait.
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


def test_sigterm_to_one_rank_stops_all(dropping: Job) -> None:
    dropping.budgets = [128, 128]
    codes = disturb(dropping, 3, lambda pids: dropping.signal(pids[1:]))
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


def test_no_temporary_thing_is_left(running: Job, home: Path) -> None:
    folder = undisturbed(running, home).dir
    assert list(folder.rglob(".*")) == []
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "update-00000015",
        "update-00000020",
    ]


@pytest.mark.parametrize(
    ("method", "budgets"), [("full", [96, 64]), ("lora", [96])], ids=["full, two ranks", "lora, one rank"]
)
def test_sigkill_of_a_job_that_learns_preferences(preferring: Job, method: str, budgets: list[int]) -> None:
    """Killed before its reference is whole, and twice after: trained weights are never taken for the reference."""
    preferring.budgets = budgets
    preferring.training |= {"method": method, "epochs": 4, "save_every_updates": 3, "lora": {"dropout": 0.1}}
    quiet = preferring.twin("quiet").finish()
    kill_some(preferring, random.Random(0), [0, 5, 12])
    assert resumed_from(preferring) >= 9
    assert len(quiet.rows()) == 20
    assert same(preferring.weights(), quiet.weights())
    columns = [[row.split(",")[:7] + row.split(",")[8:] for row in each.rows()] for each in (preferring, quiet)]
    assert columns[0] == columns[1]


def test_sigkill_while_the_window_grows(dropping: Job) -> None:
    """How much it has grown follows from the update alone."""
    dropping.window, dropping.accumulation_steps = 16, 4
    dropping.training = {"accumulation_warmup": 12, "accumulation_scheduler": "cosine", "save_every_updates": 2}
    quiet = dropping.twin("quiet").finish()
    kill_some(dropping, random.Random(0), [4, 8])
    assert resumed_from(dropping) >= 6
    assert same(dropping.weights(), quiet.weights())
    assert [row.split(",")[:7] for row in dropping.rows()] == [row.split(",")[:7] for row in quiet.rows()]

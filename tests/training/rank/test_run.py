"""The next window: how many samples it takes, and its learning rate."""

import pytest

from onyx.training.rank import run as run_module
from onyx.training.rank.run import Throughput
from tests.training.job import Job, inline, run_inline

GROWING = {"accumulation_warmup": 6, "accumulation_scheduler": "linear"}


def sizes(job: Job) -> list[int]:
    """Samples of each update."""
    taken = [int(row.split(",")[2]) for row in job.rows()]
    return [now - before for before, now in zip([0, *taken], taken, strict=False)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("linear", [4, 8, 8, 8, 12, 16, 16, 8]),
        ("cosine", [4, 4, 8, 8, 12, 16, 16, 12]),
        ("step", [4, 4, 8, 8, 16, 16, 16, 8]),
        (None, [16, 16, 16, 16, 16]),
    ],
)
def test_the_window_grows_from_one_micro_batch_to_n(job: Job, shape: str | None, expected: list[int]) -> None:
    """16 samples in 4 steps: a step is 4 samples."""
    job.window, job.accumulation_steps = 16, 4
    job.training = {"epochs": 1, "accumulation_warmup": 6, "accumulation_scheduler": shape}
    run_inline(job)
    assert sizes(job) == expected


def test_a_skipped_update_does_not_advance_it_and_no_window_is_larger_than_asked_for(job: Job) -> None:
    job.window, job.accumulation_steps, job.training = 10, 4, GROWING
    with inline(job) as run:
        run.progress.windows = 5
        assert run.next_window().samples == 3
        run.progress.update = 4
        assert run.next_window().samples == 9
        run.progress.update = 6
        assert run.next_window().samples == 10


def test_it_grows_to_an_n_that_was_changed_on_the_way(job: Job) -> None:
    job.window, job.accumulation_steps, job.training = 16, 4, {"epochs": 1, **GROWING}
    job.number = 1
    job.write_attempt()
    (job.attempt_dir / "control.json").write_text('{"seq": 1, "accumulation_steps": 2}')
    job.number = 0
    run_inline(job)
    assert sizes(job)[:9] == [4, 4, 4, 8, 8, 8, 8, 8, 8]


def test_waiting_for_others_and_short_work_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("onyx.training.rank.run.time.monotonic", lambda: now)
    mine = Throughput()
    mine.end()  # a warm-up
    assert (mine.tokens, mine.seconds) == (0, 0.0)
    mine.begin(1000)
    now += run_module.ENOUGH_SECONDS / 2
    mine.end()
    now += 1000.0  # at the vote
    assert mine.seconds_per_token is None
    mine.begin(1000)
    now += run_module.ENOUGH_SECONDS / 2
    mine.end()
    assert mine.seconds_per_token == pytest.approx(run_module.ENOUGH_SECONDS / 2000)


def test_the_learning_rate_rule_is_applied_once(job: Job) -> None:
    job.training = {"learning_rate_rule": "linear", "schedule": "constant", "learning_rate": 1e-3}
    with inline(job) as run:
        assert run.next_window().rate == 2e-3

"""Whole runs of one rank in this process."""

import pytest

from tests.training.conftest import LENGTHS
from tests.training.job import Job, result_of, run_inline, same


def test_it_learns(job: Job) -> None:
    job.training = {"epochs": 6}
    run_inline(job)
    found = result_of(job)
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


def test_a_change_of_config_holds_from_the_next_window_and_is_repeated_by_a_later_attempt(job: Job) -> None:
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

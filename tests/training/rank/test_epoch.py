"""The end of an epoch."""

from pathlib import Path

import numpy as np

from tests.training.job import Job, result_of, run_inline, write_data


def test_no_better_evaluation_stops_early(job: Job, tmp_path: Path) -> None:
    """The evaluation samples follow another rule, so that learning this one makes them worse."""
    job.data = write_data(tmp_path / "data", [20] * 24, evaluation=4)
    mask = np.load(job.data / "tokens.npy")
    mask[-80:] = np.random.default_rng(3).integers(0, 250, 80)
    np.save(job.data / "tokens.npy", mask)
    job.training = {"epochs": 50, "early_stopping_patience": 2, "schedule": "constant", "learning_rate": 0.01}
    run = run_inline(job)
    assert run.progress.stopped_early
    epochs = result_of(job).epochs
    assert len(epochs) < 50
    losses = [entry["evaluation_loss"] for entry in epochs]
    assert min(losses) == losses[-3]
    kept = sorted(path.name for path in (job.dir / "snapshots").iterdir())
    assert kept == sorted(f"epoch-{number}" for number in range(len(epochs) - 2, len(epochs) + 1))

"""A job that is tracked in W&B has the same result as one that is not, even if W&B crashes or hangs."""

import os
from pathlib import Path

import pytest

from onyx.jobs.home import Home
from onyx.jobs.models import Job
from onyx.jobs.status import JobStatus
from onyx.training.contract.metrics_csv import read_rows
from onyx.training.contract.spec import WandbSpec
from tests.acceptance.runner_home import (
    RunnerHome,
    fingerprint,
    finished,
    reached,
    runner_home,
    small_job,
    submit,
    until,
)
from tests.jobs.notify.test_tracker_process import history, runs
from tests.waiting import wait_for

LIBRARY = """
import os, time
class Settings:
    def __init__(self, **given): pass
def init(project, **given):
    if project == "crash":
        os.abort()
    time.sleep(600)
"""
GRACE = 600.0
"""Seconds that a runner gives a tracker to end by itself: longer than these tests take."""


async def _story(home: Home) -> list[tuple[str, list[str]]]:
    ended = []
    for project in (None, "crash", "hang"):
        spec = small_job(16).model_copy(update={"wandb": WandbSpec(project=project) if project else None})
        job = await finished(home, (await submit(home, spec)).id)
        events = await home.store.events.list(job.id)
        ended.append((job.id, [event.message for event in events if "W&B" in event.message]))
    return ended


def test_a_tracker_that_crashes_or_hangs_costs_a_job_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "wandb.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "library"), os.environ.get("PYTHONPATH", "")]))
    with runner_home(tmp_path / "home", grace_seconds=GRACE) as it:
        (plain, nothing), (crash, said), (hang, _) = it.run(_story)
        assert it.processes("onyx-tracker")  # the one that hangs is still there: no job has waited for it
        assert len({fingerprint(it.settings.home, job_id) for job_id in (plain, crash, hang)}) == 1
        assert nothing == []
        assert said[0] == f"Tracked in W&B as run {crash} of project crash: kept with the job for `wandb sync`, " + (
            "this server sends nothing"
        )
        _leaves_in_time(it)


def _leaves_in_time(it: RunnerHome) -> None:
    """A runner that is stopped kills a tracker that hangs."""
    (runner,) = it.runners
    runner.terminate()
    assert runner.wait(GRACE / 3) == 0


def test_all_attempts_of_a_job_are_one_run_that_has_each_update_once(tmp_path: Path) -> None:
    pytest.importorskip("wandb")

    async def story(home: Home) -> Job:
        spec = small_job(64, save_every_updates=3).model_copy(update={"wandb": WandbSpec(project="harbour")})
        it.hold(4)
        job = await submit(home, spec)
        await reached(home, job.id, 4)
        await home.pause(job.id)
        it.release(4)
        await until(home, job.id, lambda now: now.status is JobStatus.PAUSED)
        await home.resume(job.id)
        return await finished(home, job.id)

    with runner_home(tmp_path / "home", wandb_mode="offline") as it:
        job = it.run(story)
        wait_for(lambda: not it.processes("onyx-tracker"), "the trackers end")
        told = [history(path) for path in runs(it.settings.job_dir(job.id))]
    steps = [step for run in told for step in run]
    assert len(told) == 2
    assert steps == sorted(set(steps))
    assert job.result is not None
    assert steps[-1] == job.result.updates
    rows = {int(row["update"]): float(row["loss"]) for row in read_rows(it.settings.job_dir(job.id) / "metrics.csv")}
    assert {step: row["loss"] for run in told for step, row in run.items()} == {step: rows[step] for step in steps}

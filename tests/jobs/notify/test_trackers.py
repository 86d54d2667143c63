"""No job depends on its tracker. The `wandb` of these tests is a file that crashes, hangs or reads the environment."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr

from onyx.jobs.launch.launcher import ChildSpec
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from onyx.jobs.models import ClaimedJob
from onyx.jobs.notify import trackers as trackers_module
from onyx.jobs.notify.trackers import Tracker, Trackers, mode_of
from onyx.jobs.status import JobStatus
from onyx.settings import Settings
from tests.jobs.attempt_files import tracked_attempt
from tests.jobs.store_harness import RESULT, StoreHarness
from tests.waiting import PATIENCE

KEY = "k" * 40
HANGS = "import os, pathlib, time\npathlib.Path(os.environ['NOTE']).write_text(str(os.getpid()))\ntime.sleep(600)\n"
READS = (
    "import os, pathlib\n"
    "names = ('WANDB_API_KEY', 'ONYX_WANDB_API_KEY')\n"
    "pathlib.Path(os.environ['NOTE']).write_text(str([os.environ.get(name) for name in names]))\n"
    "raise RuntimeError('seen enough')\n"
)

Library = Callable[[str], Path]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Installs a `wandb` for this process and its children; where it leaves a note."""

    def install(code: str) -> Path:
        folder = tmp_path / "library"
        folder.mkdir()
        (folder / "wandb.py").write_text(code)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("NOTE", str(tmp_path / "note"))
        return tmp_path / "note"

    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    return install


async def begin(harness: StoreHarness, home: Path, **settings: Any) -> tuple[ClaimedJob, Trackers, Tracker]:
    """A running attempt, with its tracker started."""
    claimed = await harness.running()
    at = Settings.model_validate({"home": home, "grace_seconds": 0.1} | settings)
    trackers = Trackers(at, harness.store, SubprocessLauncher())
    tracker = trackers.start(tracked_attempt(at.job_dir(claimed.job.id)), claimed.lease)
    assert tracker is not None
    return claimed, trackers, tracker


async def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


async def done(trackers: Trackers) -> None:
    await asyncio.wait_for(asyncio.gather(*trackers.tasks.values()), PATIENCE)


async def said(harness: StoreHarness, claimed: ClaimedJob, level: str) -> list[str]:
    events = await harness.store.events.list(claimed.job.id)
    return [event.message for event in events if event.level == level and "W&B" in event.message]


async def status(harness: StoreHarness, claimed: ClaimedJob) -> JobStatus:
    job = await harness.store.jobs.get(claimed.job.id)
    assert job is not None
    return job.status


async def test_a_tracker_that_crashes_is_a_warning(
    harness: StoreHarness, tmp_path: Path, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    library("raise RuntimeError('no network')")
    with caplog.at_level(logging.WARNING):
        claimed, trackers, _ = await begin(harness, tmp_path)
        await done(trackers)
    (warning,) = await said(harness, claimed, "warn")
    assert "ended with status 1, the job goes on" in warning
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["tracker_failed"]
    log = trackers.settings.job_dir(claimed.job.id) / "attempts" / "1" / "tracker.log"
    assert "no network" in log.read_text()
    assert await status(harness, claimed) is JobStatus.RUNNING


async def test_a_hanging_tracker_is_killed_and_delays_no_end(
    harness: StoreHarness, tmp_path: Path, library: Library
) -> None:
    note = library(HANGS)
    claimed, trackers, tracker = await begin(harness, tmp_path)
    await until(lambda: note.exists() and note.read_text())
    process = psutil.Process(int(note.read_text()))
    assert process.nice() >= 10
    tracker.attempt_over()
    await harness.store.attempts.report_succeeded(claimed.lease, RESULT)
    assert process.is_running()  # the job has ended without waiting for it
    await done(trackers)
    await until(lambda: not process.is_running())
    assert await status(harness, claimed) is JobStatus.SUCCEEDED
    assert trackers.tasks == {}


async def test_a_runner_that_stops_kills_its_trackers(
    harness: StoreHarness, tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers_module, "STOP_SECONDS", 0.1)
    note = library(HANGS)
    _, trackers, _ = await begin(harness, tmp_path)
    await until(lambda: note.exists() and note.read_text())
    process = psutil.Process(int(note.read_text()))
    await trackers.stop()
    await until(lambda: not process.is_running())


async def test_a_launcher_that_fails_does_not_affect_the_job(
    harness: StoreHarness, tmp_path: Path, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    library("")
    claimed, trackers, _ = await begin(harness, tmp_path)
    trackers.settings.job_dir(claimed.job.id).joinpath("attempts/1/tracker.log").mkdir()  # no log can be opened there
    await done(trackers)
    assert "the tracker of" in caplog.text
    assert await status(harness, claimed) is JobStatus.RUNNING


async def test_the_next_attempt_waits_for_the_last_ones_tracker(
    harness: StoreHarness, tmp_path: Path, library: Library
) -> None:
    note = library(HANGS)
    claimed, trackers, tracker = await begin(harness, tmp_path, grace_seconds=1.0)
    await until(lambda: note.exists() and note.read_text())
    former = note.read_text()
    tracker.attempt_over()
    after = trackers.start(tracked_attempt(trackers.settings.job_dir(claimed.job.id), 2), claimed.lease)
    assert after is not None
    await until(lambda: note.read_text() not in ("", former))
    assert not psutil.pid_exists(int(former))
    after.attempt_over()  # only now: its time to leave begins here, and under load an interpreter takes long to start
    await done(trackers)


async def test_only_the_tracker_gets_the_key(
    harness: StoreHarness, tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONYX_WANDB_API_KEY", KEY)
    note = library(READS)
    claimed, trackers, _ = await begin(harness, tmp_path, wandb_api_key=KEY)
    await done(trackers)
    assert note.read_text() == str([KEY, None])
    other = ChildSpec(
        name="onyx-rank-0",
        target="onyx.jobs.launch.self_test:main",
        arguments=("say", "ONYX_WANDB_API_KEY"),
        log=tmp_path / "rank.log",
    )
    child = await trackers.launcher.start(other)
    await child.wait()
    child.close()
    assert (tmp_path / "rank.log").read_text().startswith("None ")
    left = [path.read_text() for path in trackers.settings.job_dir(claimed.job.id).rglob("*") if path.is_file()]
    events = [str(event) for event in await harness.store.events.list(claimed.job.id)]
    assert not any(KEY in text for text in [*left, *events])
    (message,) = await said(harness, claimed, "info")
    assert message == f"Tracked in W&B as run {claimed.job.id} of project harbour: sent there"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("disabled", "Nothing is sent to W&B: this server does not track jobs"),
        ("online", "Nothing is sent to W&B: wandb is not installed on this server"),
    ],
)
async def test_where_nothing_is_sent_the_job_says_why(
    harness: StoreHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, expected: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    claimed, trackers, _ = await begin(harness, tmp_path, wandb_mode=mode)
    await done(trackers)
    (warning,) = await said(harness, claimed, "warn")
    assert warning.startswith(expected)


def test_the_mode_follows_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert mode_of(Settings()) == "offline"
    assert mode_of(Settings(wandb_api_key=SecretStr(KEY))) == "online"
    assert mode_of(Settings(wandb_api_key=SecretStr(KEY), wandb_mode="disabled")) == "disabled"
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert mode_of(Settings()) == "online"

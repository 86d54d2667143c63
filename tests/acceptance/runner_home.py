"""A home (ONYX_HOME) with real runners and ranks, and what tests do to them: start, hold, kill, wait."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from onyx.jobs.home import Home
from onyx.jobs.ids import JobKind
from onyx.jobs.models import Job
from onyx.jobs.spec_builder import job_spec
from onyx.settings import Settings
from onyx.training.contract.metrics_csv import read_rows
from onyx.training.contract.spec import JobSpec
from tests.planner_cache import share_planner_cache
from tests.waiting import PATIENCE, wait_for

BRAKE = Path(__file__).parent / "brake"


def settings(home: Path, **more: Any) -> Settings:
    given = {"home": home, "cpu_memory": "3GB", "lease_seconds": 6.0, "grace_seconds": 20.0} | more
    return Settings.model_validate(given)


def small_job(samples: int = 64, devices: int = 1, window: int = 8, **training: Any) -> JobSpec:
    """A small job on onyx/tiny, with enough updates to be killed in the middle."""
    texts = [f"the square of {n} is {n * n}, " * (1 + n % 5) for n in range(samples)]
    return job_spec(
        model="onyx/tiny",
        data={"texts": texts, "max_length": 96},
        training={"epochs": 2, "learning_rate": 1e-3, "save_every_updates": 5} | training,
        window=window,
        devices=devices,
    )


class RunnerHome:
    """A home, and the runners that the test has started for it."""

    def __init__(self, at: Settings) -> None:
        self.settings = at
        self.runners: list[subprocess.Popen[bytes]] = []

    def start_runner(self, **more: str) -> subprocess.Popen[bytes]:
        """Start another runner, with these settings changed."""
        changed = {f"ONYX_{name.upper()}": value for name, value in more.items()}
        changed["PYTHONPATH"] = os.pathsep.join([str(BRAKE), os.environ.get("PYTHONPATH", "")])
        self.settings.run_dir.mkdir(parents=True, exist_ok=True)
        with (self.settings.run_dir / f"runner-{len(self.runners)}.log").open("ab") as log:
            runner = subprocess.Popen(
                [sys.executable, "-m", "onyx.jobs.runner"],
                env=os.environ | self.settings.environment() | changed,
                stdout=log,
                stderr=log,
            )
        self.runners.append(runner)
        return runner

    def log(self, number: int = 0) -> str:
        return (self.settings.run_dir / f"runner-{number}.log").read_text()

    def hold(self, *updates: int) -> None:
        """Make every job wait after these updates until `release` is called."""
        for update in updates:
            (self.settings.home / f"brake-{update}").touch()

    def release(self, update: int) -> None:
        (self.settings.home / f"brake-{update}").unlink()

    def close(self) -> None:
        for runner in self.runners:
            if runner.poll() is None:
                runner.send_signal(signal.SIGCONT)
                runner.kill()
            runner.wait()

    def run(self, story: Callable[[Home], Awaitable[Any]]) -> Any:
        """Run a test's coroutine with this home opened."""

        async def run() -> Any:
            home = await Home.open(self.settings)
            try:
                return await asyncio.wait_for(story(home), PATIENCE)
            finally:
                await home.close()

        return asyncio.run(run())

    def ranks(self) -> list[psutil.Process]:
        """The running ranks of all runners."""
        return self.processes("onyx-rank")

    def processes(self, name: str) -> list[psutil.Process]:
        """The runners' descendants whose names begin with `name`."""
        return [process for process in _children(self.runners) if _name(process).startswith(name)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that have not ended."""
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:  # it ended after it was listed
        return ""


def _children(runners: list[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    found = []
    for runner in runners:
        try:
            found += psutil.Process(runner.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def runner_home(home: Path, runners: int = 1, **more: Any) -> Iterator[RunnerHome]:
    """A home with its runners started; they are killed at the end."""
    share_planner_cache(home)
    it = RunnerHome(settings(home, **more))
    try:
        for _ in range(runners):
            it.start_runner()
        yield it
    finally:
        it.close()


async def submit(home: Home, spec: JobSpec, owner: str = "tester") -> Job:
    """Create a job for the runners that the test has started. Home.submit would start another one."""
    from onyx.jobs.wakeup import wake_runner

    job = await home.store.jobs.create(spec, owner, JobKind.ACCUMULATION)
    wake_runner(home.settings.run_dir)
    return job


async def until(home: Home, job_id: str, reached: Callable[[Job], bool]) -> Job:
    """Wait until the job fulfils the condition, and return it."""
    while True:
        job = await home.store.jobs.get(job_id)
        assert job is not None
        if reached(job):
            return job
        assert not job.status.terminal, f"{job.status}: {job.error}"
        await asyncio.sleep(0.02)


async def finished(home: Home, job_id: str) -> Job:
    job = await home.wait(job_id)
    assert job.result is not None, f"{job.status}: {job.error}"
    return job


def fingerprint(home: Path, job_id: str) -> str:
    """A hash of the published weights: equal only if all bits are."""
    weights = sorted((home / "jobs" / job_id / "model").glob("*.safetensors"))
    assert weights
    return hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest()


async def gone(processes: list[psutil.Process]) -> None:
    """Wait until all of them have ended."""
    await asyncio.to_thread(wait_for, lambda: not alive(processes), "the processes end")


async def reached(home: Home, job_id: str, update: int) -> None:
    """Wait until the job has made this update. metrics.csv has every update; the store is written once a second."""
    rows = home.settings.job_dir(job_id) / "metrics.csv"
    await asyncio.to_thread(wait_for, lambda: len(read_rows(rows)) >= update, f"update {update}")

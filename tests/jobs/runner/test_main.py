"""The runner: a database that goes away costs it nothing, no background task of it dies in silence, and it knows how
many cores it has."""

import asyncio
import dataclasses
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onyx.jobs.files import close_directory
from onyx.jobs.home import Home
from onyx.jobs.launch.launch_service import LaunchService
from onyx.jobs.launch.launcher import ChildSpec
from onyx.jobs.launch.subprocess_launcher import SubprocessChild, SubprocessLauncher
from onyx.jobs.process_identity import this_process
from onyx.jobs.runner.device_offers import offer_devices
from onyx.jobs.runner.lease_keeper import LeaseKeeper
from onyx.jobs.runner.main import NAME, Runner, runner_log
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.status import StopRequest
from onyx.jobs.store.store import Store
from onyx.jobs.wakeup import WakeupListener
from onyx.settings import Settings
from tests.acceptance.runner_home import RunnerHome, runner_home, small_job, submit, until
from tests.jobs.postgres import PostgresServer
from tests.jobs.store_harness import StoreHarness, wrap_call
from tests.waiting import wait_for

PATIENCE = 60.0

CUT_OFF = """
    CREATE FUNCTION cut_off() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
    CREATE TRIGGER cut_off BEFORE INSERT ON runner FOR EACH ROW EXECUTE FUNCTION cut_off();
    DELETE FROM runner
"""
"""The store forgets its runners, and whoever registers anew loses the connection."""


CALLS: dict[str, Callable[[Store], object]] = {
    "report_alive": lambda store: store.runners,
    "any_due": lambda store: store.webhooks,
    "waiting_phases": lambda store: store.claims,
    "heartbeat": lambda store: store.attempts,
}
"""Calls of the runner's background tasks, and whose they are."""


class Tripping(Store):
    """A store in which a defect shows once at this call."""

    def __init__(self, store: Store, call: str) -> None:
        super().__init__(store.database.engine, lease_seconds=1.0)
        self._tripped = False
        self.again = asyncio.Event()
        """The call was made once more."""
        wrap_call(CALLS[call](self), call, self._trip)

    async def _trip(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if not self._tripped:
            self._tripped = True
            raise RuntimeError("a defect")
        self.again.set()
        return await call()


class Counted(Store):
    """A store that lets a test wait until its runner has looked for work again."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database.engine)
        self.looked = asyncio.Semaphore(0)
        wrap_call(self.claims, "waiting_phases", self._look)

    async def _look(self, call: Callable[[], Awaitable[Any]]) -> Any:
        found = await call()
        self.looked.release()
        return found


class Waiting(SubprocessLauncher):
    """Real children that do nothing but wait for the end of their lifelines."""

    def __init__(self) -> None:
        self.children: asyncio.Queue[SubprocessChild] = asyncio.Queue()

    async def start(self, work: ChildSpec) -> SubprocessChild:
        child = await super().start(
            dataclasses.replace(work, target="onyx.jobs.launch.self_test:main", arguments=("wait",))
        )
        self.children.put_nowait(child)
        return child


@asynccontextmanager
async def running(store: Store, home: Path, launcher: SubprocessLauncher | None = None) -> AsyncIterator[Runner]:
    """A runner in this process."""
    settings = Settings(home=home, cpu_memory="3GB", free_disk_bytes=0)
    close_directory(settings.run_dir)
    launcher = launcher or SubprocessLauncher()
    runner_id = await store.runners.register(this_process())
    context = RunnerContext(
        settings=settings, store=store, launcher=launcher, runner_id=runner_id, offered=await offer_devices(settings)
    )
    alarm = WakeupListener(settings.run_dir)
    runner = Runner(context, alarm, LaunchService(settings.run_dir, launcher))
    task = asyncio.create_task(runner.run())
    try:
        yield runner
        assert not task.done(), "the runner is still there"
    finally:
        runner.stop()
        await asyncio.wait_for(task, PATIENCE)
        alarm.close()


@pytest.mark.parametrize("call", ["report_alive", "due", "waiting"])
async def test_a_defect_is_logged_and_the_task_starts_again(
    harness: StoreHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    store = Tripping(harness.store, call)
    async with running(store, tmp_path):
        await asyncio.wait_for(store.again.wait(), PATIENCE)
        store.again.clear()
        await asyncio.wait_for(store.again.wait(), PATIENCE)
    assert "a defect" in caplog.text


async def test_a_lease_is_kept_after_a_defect(harness: StoreHarness, caplog: pytest.LogCaptureFixture) -> None:
    claimed = await harness.running()
    store = Tripping(harness.store, "heartbeat")
    async with LeaseKeeper(store, claimed.lease) as keeper:
        await asyncio.wait_for(store.again.wait(), PATIENCE)
        await harness.store.control.cancel(claimed.job.id)
        keeper.beat_now()
        await asyncio.wait_for(keeper.news.wait(), PATIENCE)
        assert keeper.request is StopRequest.CANCEL
    assert "a defect" in caplog.text


@pytest.fixture
def one_core() -> Iterator[None]:
    """This process may use one core, whatever the machine has. A control group's quota counts alike."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
async def test_no_more_jobs_are_prepared_at_once_than_it_has_cores(harness: StoreHarness, tmp_path: Path) -> None:
    store, launcher = Counted(harness.store), Waiting()
    jobs = [(await harness.job(owner)).id for owner in ("ann", "bob")]
    async with running(store, tmp_path, launcher):
        await asyncio.wait_for(launcher.children.get(), PATIENCE)
        for _ in range(3):
            await asyncio.wait_for(store.looked.acquire(), PATIENCE)
        found = [await harness.store.jobs.get(job) for job in jobs]
        assert sorted(job.attempt for job in found if job is not None) == [0, 1]


@pytest.fixture
def away(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[RunnerHome, str]]:
    """A place on PostgreSQL, and its database's name."""
    name = "onyx_away"
    with runner_home(tmp_path, runners=0, database_url=postgres.create(name)) as it:
        yield it, name


def test_a_database_that_goes_away_while_a_runner_registers_costs_nothing(
    postgres: PostgresServer, away: tuple[RunnerHome, str]
) -> None:
    it, name = away

    async def story(home: Home) -> None:
        runner = it.start_runner()
        await asyncio.to_thread(wait_for, lambda: " offers " in it.log(), "the runner is there")
        await asyncio.to_thread(postgres.sql, CUT_OFF, name)
        job = await submit(home, small_job(samples=16))  # to claim it the runner has to be known
        await asyncio.to_thread(
            wait_for, lambda: "no new jobs until it is back" in it.log() or ended(runner), "it tries"
        )
        assert not ended(runner), it.log()
        await asyncio.to_thread(postgres.sql, "DROP TRIGGER cut_off ON runner", name)
        await until(home, job.id, lambda job: job.attempt > 0)  # claimed by the runner that registered again
        assert not ended(runner)

    it.run(story)


def ended(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is not None


MOST = 2000

WRITER = """
import logging, os, sys
from pathlib import Path
from onyx import logs
from onyx.jobs.runner.main import runner_log
from onyx.settings import Settings

settings = Settings(home=Path(sys.argv[1]), log_bytes=int(sys.argv[2]), log_files=3)
handler = runner_log(settings)
assert handler is not None
logs.configure(settings, handler=handler)
for number in range(100):
    logging.getLogger("onyx").info("line %d", number)
os.write(1, b"past logging\\n")
os.write(2, b"last words\\n")
"""


def write(home: Path, most: int) -> Path:
    log = home / "run" / NAME
    log.parent.mkdir(parents=True)
    with log.open("ab") as output:
        subprocess.run([sys.executable, "-c", WRITER, home, str(most)], stdout=output, stderr=output, check=True)
    return log


def test_it_begins_anew_and_all_output_follows(tmp_path: Path) -> None:
    log = write(tmp_path, MOST)
    files = sorted(log.parent.glob(f"{NAME}*"), reverse=True)
    assert [path.name for path in files] == [f"{NAME}.3", f"{NAME}.2", f"{NAME}.1", NAME]
    assert all(path.stat().st_size <= MOST + 100 for path in files)
    text = "".join(path.read_text() for path in files)
    numbers = [int(line.split('"line ')[1].split('"')[0]) for line in text.splitlines() if '"line ' in line]
    assert numbers == list(range(100 - len(numbers), 100))
    assert log.read_text().endswith("past logging\nlast words\n")


def test_without_a_size_it_only_grows(tmp_path: Path) -> None:
    log = write(tmp_path, 0)
    assert len(log.read_text().splitlines()) == 102
    assert [path.name for path in log.parent.iterdir()] == [NAME]


def test_output_that_goes_elsewhere_is_left_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert runner_log(settings) is None
    settings.run_dir.mkdir()
    (settings.run_dir / NAME).touch()
    assert runner_log(settings) is None

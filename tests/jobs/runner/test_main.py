"""The runner survives a database that is unavailable and defects in its tasks, and counts the cores it may use."""

import asyncio
import dataclasses
import os
import subprocess
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
from onyx.jobs.runner.main import Runner
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
"""The store forgets its runners, and a runner that registers again loses its connection."""


CALLS: dict[str, Callable[[Store], object]] = {
    "report_alive": lambda store: store.runners,
    "any_due": lambda store: store.webhooks,
    "waiting_phases": lambda store: store.claims,
    "heartbeat": lambda store: store.attempts,
}
"""Store calls of the runner's background tasks, and the concern that has each."""


class DefectiveStore(Store):
    """A store in which one call raises once."""

    def __init__(self, store: Store, call: str) -> None:
        super().__init__(store.database.engine, lease_seconds=1.0)
        self._raised = False
        self.again = asyncio.Event()
        """The call was made once more."""
        wrap_call(CALLS[call](self), call, self._raise_once)

    async def _raise_once(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if not self._raised:
            self._raised = True
            raise RuntimeError("a defect")
        self.again.set()
        return await call()


class WatchedStore(Store):
    """A store that lets a test wait until its runner has looked for jobs again."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database.engine)
        self.looked = asyncio.Semaphore(0)
        wrap_call(self.claims, "waiting_phases", self._look)

    async def _look(self, call: Callable[[], Awaitable[Any]]) -> Any:
        found = await call()
        self.looked.release()
        return found


class IdleLauncher(SubprocessLauncher):
    """Starts real children that only wait for the end of their lifelines."""

    def __init__(self) -> None:
        self.children: asyncio.Queue[SubprocessChild] = asyncio.Queue()

    async def start(self, spec: ChildSpec) -> SubprocessChild:
        child = await super().start(
            dataclasses.replace(spec, target="onyx.jobs.launch.self_test:main", arguments=("wait",))
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
    wakeup = WakeupListener(settings.run_dir)
    runner = Runner(context, wakeup, LaunchService(settings.run_dir, launcher))
    task = asyncio.create_task(runner.run())
    try:
        yield runner
        assert not task.done(), "the runner is still there"
    finally:
        runner.stop()
        await asyncio.wait_for(task, PATIENCE)
        wakeup.close()


@pytest.mark.parametrize("call", ["report_alive", "any_due", "waiting_phases"])
async def test_a_defect_is_logged_and_the_task_starts_again(
    harness: StoreHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    store = DefectiveStore(harness.store, call)
    async with running(store, tmp_path):
        await asyncio.wait_for(store.again.wait(), PATIENCE)
        store.again.clear()
        await asyncio.wait_for(store.again.wait(), PATIENCE)
    assert "a defect" in caplog.text


async def test_a_lease_is_renewed_after_a_defect(harness: StoreHarness, caplog: pytest.LogCaptureFixture) -> None:
    claimed = await harness.running()
    store = DefectiveStore(harness.store, "heartbeat")
    async with LeaseKeeper(store, claimed.lease) as keeper:
        await asyncio.wait_for(store.again.wait(), PATIENCE)
        await harness.store.control.cancel(claimed.job.id)
        keeper.beat_now()
        await asyncio.wait_for(keeper.news.wait(), PATIENCE)
        assert keeper.request is StopRequest.CANCEL
    assert "a defect" in caplog.text


@pytest.fixture
def one_core() -> Iterator[None]:
    """This process may use one core, however many the machine has. A control group's quota counts alike."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
async def test_no_more_jobs_are_prepared_at_once_than_it_has_cores(harness: StoreHarness, tmp_path: Path) -> None:
    store, launcher = WatchedStore(harness.store), IdleLauncher()
    jobs = [(await harness.job(owner)).id for owner in ("ann", "bob")]
    async with running(store, tmp_path, launcher):
        await asyncio.wait_for(launcher.children.get(), PATIENCE)
        for _ in range(3):
            await asyncio.wait_for(store.looked.acquire(), PATIENCE)
        found = [await harness.store.jobs.get(job) for job in jobs]
        assert sorted(job.attempt for job in found if job is not None) == [0, 1]


@pytest.fixture
def flaky(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[RunnerHome, str]]:
    """A place on PostgreSQL, and its database's name."""
    name = "onyx_flaky"
    with runner_home(tmp_path, runners=0, database_url=postgres.create(name)) as it:
        yield it, name


def test_a_runner_survives_a_database_that_fails_while_it_registers(
    postgres: PostgresServer, flaky: tuple[RunnerHome, str]
) -> None:
    it, name = flaky

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

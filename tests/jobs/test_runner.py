"""The runner: a database that goes away costs it nothing, no background task of it dies in silence, and it knows how
many cores it has."""

import asyncio
import dataclasses
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onyx.jobs.bench import Bench
from onyx.jobs.errands import Errands
from onyx.jobs.fresh import FreshChild, FreshLauncher
from onyx.jobs.hold import Hold
from onyx.jobs.holder import this_process
from onyx.jobs.home import Home
from onyx.jobs.offer import offer
from onyx.jobs.private import close_directory
from onyx.jobs.records import RunnerRecord
from onyx.jobs.runner import Runner
from onyx.jobs.status import JobStatus, Request
from onyx.jobs.store import Store
from onyx.jobs.values import Heartbeat, Lease
from onyx.jobs.wake import Alarm
from onyx.jobs.work import Work
from onyx.settings import Settings
from tests.acceptance.place import Place, lesson, place, submit, until, wait_for
from tests.jobs.postgres import PostgresServer
from tests.jobs.world import World

PATIENCE = 60.0

CUT_OFF = """
    CREATE FUNCTION cut_off() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
    CREATE TRIGGER cut_off BEFORE INSERT ON runner FOR EACH ROW EXECUTE FUNCTION cut_off();
    DELETE FROM runner
"""
"""The store forgets its runners, and whoever registers anew loses the connection."""


class Tripping(Store):
    """A store in which a defect shows once at each of these calls."""

    def __init__(self, store: Store, *calls: str) -> None:
        super().__init__(store.engine, lease_seconds=1.0)
        self._trips = set(calls)
        self.again = asyncio.Event()
        """The call was made once more."""

    def _trip(self, call: str) -> None:
        if call in self._trips:
            self._trips.remove(call)
            raise RuntimeError("a defect")
        self.again.set()

    async def runner_alive(self, runner_id: str) -> RunnerRecord:
        self._trip("runner_alive")
        return await super().runner_alive(runner_id)

    async def delivery_due(self) -> bool:
        self._trip("delivery_due")
        return await super().delivery_due()

    async def waiting(self) -> frozenset[JobStatus]:
        self._trip("waiting")
        return await super().waiting()

    async def heartbeat(self, lease: Lease) -> Heartbeat:
        self._trip("heartbeat")
        return await super().heartbeat(lease)


class Counted(Store):
    """A store that lets a test wait until its runner has looked for work again."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.engine)
        self.looked = asyncio.Semaphore(0)

    async def waiting(self) -> frozenset[JobStatus]:
        found = await super().waiting()
        self.looked.release()
        return found


class Waiting(FreshLauncher):
    """Real children that do nothing but wait for the end of their lifelines."""

    def __init__(self) -> None:
        self.children: asyncio.Queue[FreshChild] = asyncio.Queue()

    async def start(self, work: Work) -> FreshChild:
        child = await super().start(dataclasses.replace(work, target="onyx.jobs.rehearsal:main", arguments=("wait",)))
        self.children.put_nowait(child)
        return child


@asynccontextmanager
async def running(store: Store, home: Path, launcher: FreshLauncher | None = None) -> AsyncIterator[Runner]:
    """A runner in this process."""
    settings = Settings(home=home, cpu_memory="3GB", free_disk_bytes=0)
    close_directory(settings.run_dir)
    launcher = launcher or FreshLauncher()
    runner_id = await store.register_runner(this_process())
    bench = Bench(settings=settings, store=store, launcher=launcher, runner_id=runner_id, offered=await offer(settings))
    alarm = Alarm(settings.run_dir)
    runner = Runner(bench, alarm, Errands(settings.run_dir, launcher))
    task = asyncio.create_task(runner.run())
    try:
        yield runner
        assert not task.done(), "the runner is still there"
    finally:
        runner.stop()
        await asyncio.wait_for(task, PATIENCE)
        alarm.close()


@pytest.mark.parametrize("call", ["runner_alive", "delivery_due", "waiting"])
async def test_a_defect_is_logged_and_the_task_starts_again(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    store = Tripping(world.store, call)
    async with running(store, tmp_path):
        await asyncio.wait_for(store.again.wait(), PATIENCE)
        store.again.clear()
        await asyncio.wait_for(store.again.wait(), PATIENCE)
    assert "a defect" in caplog.text


async def test_a_lease_is_kept_after_a_defect(world: World, caplog: pytest.LogCaptureFixture) -> None:
    claimed = await world.running()
    store = Tripping(world.store, "heartbeat")
    async with Hold(store, claimed.lease) as hold:
        await asyncio.wait_for(store.again.wait(), PATIENCE)
        await world.store.request_cancel(claimed.job.id)
        hold.beat_now()
        await asyncio.wait_for(hold.news.wait(), PATIENCE)
        assert hold.request is Request.CANCEL
    assert "a defect" in caplog.text


@pytest.fixture
def one_core() -> Iterator[None]:
    """This process may use one core, whatever the machine has. A control group's quota counts alike."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
async def test_no_more_jobs_are_prepared_at_once_than_it_has_cores(world: World, tmp_path: Path) -> None:
    store, launcher = Counted(world.store), Waiting()
    jobs = [(await world.job(owner)).id for owner in ("ann", "bob")]
    async with running(store, tmp_path, launcher):
        await asyncio.wait_for(launcher.children.get(), PATIENCE)
        for _ in range(3):
            await asyncio.wait_for(store.looked.acquire(), PATIENCE)
        found = [await world.store.get(job) for job in jobs]
        assert sorted(job.attempt for job in found if job is not None) == [0, 1]


@pytest.fixture
def away(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[Place, str]]:
    """A place on PostgreSQL, and its database's name."""
    name = "onyx_away"
    with place(tmp_path, runners=0, database_url=postgres.create(name)) as it:
        yield it, name


def test_a_database_that_goes_away_while_a_runner_registers_costs_nothing(
    postgres: PostgresServer, away: tuple[Place, str]
) -> None:
    it, name = away

    async def story(home: Home) -> None:
        runner = it.start_runner()
        await asyncio.to_thread(wait_for, lambda: " offers " in it.log(), "the runner is there")
        await asyncio.to_thread(postgres.sql, CUT_OFF, name)
        job = await submit(home, lesson(samples=16))  # to claim it the runner has to be known
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

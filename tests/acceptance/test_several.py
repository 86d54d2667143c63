"""Several owners, several runners, and a database that stops for a while."""

import asyncio
import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onyx.jobs.home import Home
from onyx.jobs.status import JobStatus
from tests.acceptance.runner_home import RunnerHome, fingerprint, finished, reached, runner_home, small_job, submit
from tests.jobs.postgres import PostgresServer, find_binaries, server_user


@pytest.fixture(scope="module")
def postgres() -> Any:
    binaries, user = find_binaries(), server_user()
    if binaries is None or user is None:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl, and a user to run them")
    server = PostgresServer(binaries, user)
    yield server
    server.close()


@pytest.fixture(scope="module")
def two_runners(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[RunnerHome]:
    with runner_home(tmp_path_factory.mktemp("several"), runners=2, database_url=postgres.create("shared")) as it:
        yield it


async def all_jobs(home: Home, count: int, owners: int) -> None:
    """Run jobs of several owners: each runs once, and no owner waits for all jobs of another."""
    jobs = [
        await submit(home, small_job(samples=8, epochs=1, seed=number), owner=f"owner {number % owners}")
        for number in range(count)
    ]
    done = [await finished(home, job.id) for job in jobs]
    for job in done:
        attempts = [record for record in await home.store.jobs.attempts(job.id) if record.phase is JobStatus.RUNNING]
        assert len(attempts) == 1
    order = [job.owner for job in sorted(done, key=lambda job: job.started_at or 0)]
    middle = collections.Counter(order[: count // 2])
    assert max(middle.values()) - min(middle.values()) <= 2
    assert len(middle) == owners


def test_a_queue_of_several_owners_is_served_fairly(tmp_path: Path) -> None:
    with runner_home(tmp_path) as it:
        it.run(lambda home: all_jobs(home, count=15, owners=3))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_jobs_of_five_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.acceptance.runner_home.PATIENCE", 1500.0)
    with runner_home(tmp_path) as it:
        it.run(lambda home: all_jobs(home, count=200, owners=5))


def test_two_runners_share_a_queue_on_postgresql(two_runners: RunnerHome) -> None:
    two_runners.run(lambda home: all_jobs(home, count=6, owners=3))


def test_a_database_that_is_away_costs_nothing(two_runners: RunnerHome, postgres: PostgresServer) -> None:
    """The database is stopped in the middle of a job, for twice the lease: the job succeeds, with every event."""

    async def story(home: Home) -> str:
        two_runners.hold(20, 30)
        job = await submit(home, small_job(samples=320, epochs=1))
        await reached(home, job.id, 20)
        await asyncio.to_thread(postgres.stop)
        two_runners.release(20)
        await asyncio.sleep(2 * two_runners.settings.lease_seconds)  # the outage itself is what is tested
        await reached(home, job.id, 30)  # the job has gone on meanwhile
        await asyncio.to_thread(postgres.start)
        two_runners.release(30)
        done = await finished(home, job.id)
        assert done.attempt == 2  # one to prepare, one to train: no other runner took it over
        events = await home.store.events.list(job.id, limit=1000)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        written = home.settings.job_dir(job.id) / "attempts" / "2" / "events.jsonl"
        assert len([event for event in events if event.line]) == len(written.read_text().splitlines())
        return done.id

    assert fingerprint(two_runners.settings.home, two_runners.run(story))

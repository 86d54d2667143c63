"""Kill ranks, runners or the database: the job still ends, and its weights are the same to the bit."""

import asyncio
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator

import pytest

from onyx.jobs.errors import StoreUnavailableError
from onyx.jobs.home import Home
from onyx.jobs.models import Job
from onyx.jobs.retry import retry_until_available
from onyx.jobs.status import JobStatus, Outcome
from tests.acceptance.runner_home import (
    RunnerHome,
    fingerprint,
    finished,
    gone,
    reached,
    runner_home,
    small_job,
    submit,
    until,
)
from tests.waiting import PATIENCE, wait_for

SPEC = small_job(samples=160, epochs=2)
"""40 updates, a checkpoint every 5."""

MOMENTS = range(6, 36)
"""Updates after which something is killed: there is a checkpoint before, and enough to do afterwards."""


Kill = Callable[[RunnerHome], Awaitable[None]]


async def plain(home: Home) -> Job:
    return await finished(home, (await submit(home, SPEC)).id)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerHome]:
    """A home for all tests that leave one runner running: starting a runner takes longer than a job."""
    with runner_home(tmp_path_factory.mktemp("shared"), lease_seconds=4.0) as it:
        yield it


@pytest.fixture(scope="module")
def undisturbed(shared: RunnerHome) -> str:
    """The fingerprint that every disturbed run must have."""
    return fingerprint(shared.settings.home, shared.run(plain).id)


def after_attempt(number: int) -> Callable[[Job], bool]:
    return lambda job: job.attempt > number


async def resumed_from_a_checkpoint(home: Home, job: Job, lost: int) -> None:
    attempts = [record for record in await home.store.jobs.attempts(job.id) if record.phase is JobStatus.RUNNING]
    assert len(attempts) == lost + 1
    events = await home.store.events.list(job.id, limit=1000)
    resumed = [event for event in events if event.message.startswith("resumed from update")]
    assert len(resumed) == lost
    assert all(event.data["update"] >= 5 for event in resumed)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))  # no event is lost


async def kill_ranks(it: RunnerHome) -> None:
    for rank in it.ranks():
        rank.send_signal(signal.SIGKILL)


async def kill_runner(it: RunnerHome) -> None:
    """Kill the runner and start another one, as an operator's process supervisor would."""
    runner, ranks = it.runners[-1], it.ranks()
    runner.kill()
    runner.wait()
    await gone(ranks)
    it.start_runner()


def disturbed(it: RunnerHome, plan: list[tuple[int, Kill]]) -> str:
    """The fingerprint of a job during which the planned kills happened after the planned updates."""

    async def story(home: Home) -> Job:
        it.hold(*(moment for moment, _ in plan))
        job = await submit(home, SPEC)
        for moment, kill in plan:
            await reached(home, job.id, moment)
            before = (await until(home, job.id, lambda job: job.status is JobStatus.RUNNING)).attempt
            await kill(it)
            it.release(moment)
            await until(home, job.id, after_attempt(before))
        done = await finished(home, job.id)
        await resumed_from_a_checkpoint(home, done, lost=len(plan))
        return done

    return fingerprint(it.settings.home, it.run(story).id)


def moments(seed: int, count: int) -> list[int]:
    return sorted(random.Random(seed).sample(MOMENTS, count))


def test_a_killed_rank_costs_no_bits(shared: RunnerHome, undisturbed: str) -> None:
    assert disturbed(shared, [(moment, kill_ranks) for moment in moments(4, 2)]) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_ranks_killed_at_random_moments(shared: RunnerHome, undisturbed: str, seed: int) -> None:
    assert disturbed(shared, [(moment, kill_ranks) for moment in moments(seed, 1)]) == undisturbed


def test_a_killed_runner_costs_no_bits(shared: RunnerHome, undisturbed: str) -> None:
    assert disturbed(shared, [(12, kill_runner)]) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_runners_killed_at_random_moments(shared: RunnerHome, undisturbed: str, seed: int) -> None:
    assert disturbed(shared, [(moment, kill_runner) for moment in moments(seed, 1)]) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_both_killed_twice_in_one_job(shared: RunnerHome, undisturbed: str, seed: int) -> None:
    kills = [kill_ranks, kill_runner] * 2
    assert disturbed(shared, list(zip(moments(seed, 4), kills, strict=True))) == undisturbed


def test_pause_and_resume_cost_no_bits(shared: RunnerHome, undisturbed: str) -> None:
    async def story(home: Home) -> Job:
        shared.hold(12)
        job = await submit(home, SPEC)
        await reached(home, job.id, 12)
        await home.pause(job.id)
        shared.release(12)
        paused = await until(home, job.id, lambda job: job.status is JobStatus.PAUSED)
        assert paused.checkpoint_update is not None
        await home.store.control.resume(job.id)
        done = await finished(home, job.id)
        outcomes = [record.outcome for record in await home.store.jobs.attempts(job.id)]
        assert Outcome.PAUSED in outcomes
        return done

    assert fingerprint(shared.settings.home, shared.run(story).id) == undisturbed


def test_cancel_frees_the_devices_and_is_final(shared: RunnerHome) -> None:
    async def story(home: Home) -> None:
        job = await submit(home, small_job(samples=400, epochs=50))
        await reached(home, job.id, 3)
        await home.cancel(job.id)
        assert (await home.wait(job.id)).status is JobStatus.CANCELLED
        await finished(home, (await submit(home, small_job(samples=16))).id)  # the device is free again

    shared.run(story)
    assert shared.ranks() == []


def test_sigterm_saves_and_requeues(shared: RunnerHome, undisturbed: str) -> None:
    async def story(home: Home) -> Job:
        shared.hold(7)
        job = await submit(home, SPEC)
        await reached(home, job.id, 7)
        shared.runners[-1].terminate()
        shared.release(7)
        assert await asyncio.to_thread(shared.runners[-1].wait, PATIENCE) == 0
        queued = await home.store.jobs.get(job.id)
        assert queued is not None
        assert queued.status is JobStatus.QUEUED
        assert queued.lost_attempts == 0
        assert queued.checkpoint_update is not None
        assert queued.checkpoint_update >= 7
        shared.start_runner()
        return await finished(home, job.id)

    assert fingerprint(shared.settings.home, shared.run(story).id) == undisturbed


async def stop_between_writes(home: Home, runner: subprocess.Popen[bytes]) -> None:
    """Stop a process outside of a transaction: otherwise SQLite would wait for it as long as it is stopped."""
    while True:
        runner.send_signal(signal.SIGSTOP)
        try:
            await home.store.home_marker()
        except StoreUnavailableError:
            runner.send_signal(signal.SIGCONT)
            await retry_until_available(home.store.home_marker)  # let it finish its transaction
        else:
            return


def test_a_zombie_writes_nothing_and_says_so(shared: RunnerHome, undisturbed: str) -> None:
    """A runner is stopped until its lease has expired, another finishes the job, and the first continues."""

    async def story(home: Home) -> Job:
        shared.hold(7)
        job = await submit(home, SPEC)
        await reached(home, job.id, 7)
        running = await until(home, job.id, lambda job: job.status is JobStatus.RUNNING)
        number, ranks = len(shared.runners) - 1, shared.ranks()
        zombie = shared.runners[number]
        await stop_between_writes(home, zombie)
        shared.release(7)
        shared.start_runner()
        done = await finished(home, job.id)
        assert done.attempt > running.attempt
        events = await home.store.events.list(job.id, limit=1000)
        zombie.send_signal(signal.SIGCONT)
        await gone(ranks)
        await asyncio.to_thread(wait_for, lambda: "lost its lease" in shared.log(number), "it says so")
        assert await home.store.events.list(job.id, limit=1000) == events
        zombie.terminate()
        assert await asyncio.to_thread(zombie.wait, PATIENCE) == 0
        return done

    assert fingerprint(shared.settings.home, shared.run(story).id) == undisturbed

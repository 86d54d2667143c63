"""Jobs that take too long, hang, need what the host does not have, or need several devices."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from onyx.jobs.home import Home
from onyx.jobs.models import Job
from onyx.jobs.status import JobStatus
from onyx.training.contract.spec import JobSpec
from onyx.training.prepare.cpu_precision_probe import precision_trouble
from tests.acceptance.runner_home import RunnerHome, fingerprint, finished, reached, runner_home, small_job, submit
from tests.waiting import PATIENCE, wait_for

LONG = {"samples": 400, "epochs": 100}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerHome]:
    """A home with two devices. Every test leaves one runner running."""
    with runner_home(tmp_path_factory.mktemp("limits"), cpu_devices=2, stranded_seconds=2.0) as it:
        yield it


def fails(it: RunnerHome, spec: JobSpec, *, stop_ranks: bool = False) -> Job:
    """Run a job that must fail at its first attempt, and leave no rank running and no device lent."""

    async def story(home: Home) -> Job:
        job = await submit(home, spec)
        if stop_ranks:
            await reached(home, job.id, 2)
            for rank in it.ranks():
                rank.send_signal(signal.SIGSTOP)
        ended = await home.wait(job.id)
        attempts = [record for record in await home.store.jobs.attempts(job.id) if record.phase is JobStatus.RUNNING]
        assert len(attempts) == 1
        await asyncio.to_thread(wait_for, lambda: not it.ranks(), "the ranks end")
        assert (await home.store.inventory.counts()).devices_lent == 0
        return ended

    job: Job = it.run(story)
    assert job.status is JobStatus.FAILED
    return job


def test_the_time_limit_ends_a_job(shared: RunnerHome) -> None:
    job = fails(shared, small_job(**LONG, time_limit_seconds=1.0))
    assert job.error is not None
    assert job.error.code == "time_limit"
    assert "time limit of 1 seconds" in job.error.message


def test_a_job_without_progress_is_stuck(tmp_path: Path) -> None:
    """Its own runner has a short limit: on a busy machine other jobs might make no progress for that long."""
    with runner_home(tmp_path, cpu_devices=2, stuck_seconds=5.0) as it:
        job = fails(it, small_job(**LONG), stop_ranks=True)
    assert job.error is not None
    assert job.error.code == "stuck"


def test_processes_have_names_and_one_killed_rank_of_two_costs_no_bits(shared: RunnerHome) -> None:
    spec = small_job(samples=160, devices=2)

    async def story(home: Home) -> list[str]:
        quiet = await finished(home, (await submit(home, spec)).id)
        shared.hold(8)
        job = await submit(home, spec)
        await reached(home, job.id, 8)
        ranks = sorted(shared.ranks(), key=psutil.Process.name)
        assert [rank.name() for rank in ranks] == ["onyx-rank-0", "onyx-rank-1"]
        assert {parent.name() for rank in ranks if (parent := rank.parent())} == {"onyx-template"}
        assert psutil.Process(shared.runners[-1].pid).name() == "onyx-runner"
        ranks[1].send_signal(signal.SIGKILL)
        shared.release(8)
        done = await finished(home, job.id)
        events = await home.store.events.list(job.id, limit=1000)
        assert [event.data["update"] >= 5 for event in events if event.message.startswith("resumed from")] == [True]
        return [fingerprint(shared.settings.home, each.id) for each in (quiet, done)]

    quiet, disturbed = shared.run(story)
    assert disturbed == quiet
    assert "rank 1 was killed by SIGKILL" in shared.log(len(shared.runners) - 1)


def test_bf16_on_a_cpu_trains_or_says_why_not(shared: RunnerHome, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(home: Home) -> Job:
        done = await finished(home, (await submit(home, small_job(samples=16, precision="bf16"))).id)
        events = await home.store.events.list(done.id, limit=1000)
        warned = [event.message for event in events if event.level == "warn" and "bf16" in event.message]
        assert len(warned) == (0 if bears_it else 1)
        return done

    monkeypatch.setenv("ONYX_HOME", str(shared.settings.home))
    bears_it = precision_trouble("bf16") is None
    job: Job = shared.run(story)
    attempt = json.loads((shared.settings.job_dir(job.id) / "attempts" / "2" / "attempt.json").read_text())
    assert attempt["precision"] == ("bf16" if bears_it else "float32")


def test_a_job_whose_devices_are_gone_is_planned_anew(shared: RunnerHome) -> None:
    """With less memory the CPU is another device, for which the stored plan is not valid."""

    async def story(home: Home) -> Job:
        shared.hold(8)
        job = await submit(home, small_job(samples=160))
        await reached(home, job.id, 8)
        shared.runners[-1].terminate()
        shared.release(8)
        assert await asyncio.to_thread(shared.runners[-1].wait, PATIENCE) == 0
        shared.start_runner(cpu_memory="2GB")
        done = await finished(home, job.id)
        phases = [record.phase for record in await home.store.jobs.attempts(job.id)]
        assert phases == [JobStatus.VALIDATING, JobStatus.RUNNING] * 2
        events = await home.store.events.list(job.id, limit=1000)
        warnings = [event for event in events if event.level == "warn" and "truncated" not in event.data]
        assert [event.data.get("code") for event in warnings] == ["stranded"], warnings
        assert [event.data["update"] >= 7 for event in events if event.message.startswith("resumed from")] == [True]
        return done

    job: Job = shared.run(story)
    assert job.result is not None
    assert job.result.updates == 40

"""What an operator relies on: ended jobs free their devices, old files are removed, a full disk makes jobs wait."""

import asyncio
import json
from pathlib import Path

from onyx.jobs.home import Home
from onyx.jobs.runner import bulletin
from onyx.jobs.status import JobStatus
from tests.acceptance.runner_home import alive, finished, gone, reached, runner_home, small_job, submit
from tests.waiting import wait_for


def test_ranks_and_working_files_are_gone_after_a_job(tmp_path: Path) -> None:
    """A rank's memory, on the CPU or a GPU, is freed because its process ends."""
    with runner_home(tmp_path, keep_working_days=0, housekeeping_seconds=0.2) as it:

        async def story(home: Home) -> None:
            it.hold(1)
            job = await submit(home, small_job())
            folder = home.settings.job_dir(job.id)
            await reached(home, job.id, 1)
            ranks = it.ranks()
            assert alive(ranks)
            it.release(1)
            await finished(home, job.id)
            await gone(ranks)
            assert it.ranks() == []
            await asyncio.to_thread(wait_for, lambda: not (folder / "checkpoints").exists(), "housekeeping")
            assert (folder / "model" / "model.safetensors").exists()
            assert (folder / "metrics.csv").exists()
            assert await home.store.jobs.get(job.id) is not None

        it.run(story)
        assert len(bulletin.read_all(it.settings.run_dir)) == 1
        lines = [json.loads(line) for line in it.log().splitlines()]
        ended = next(line for line in lines if line.get("action") == "attempt_ended")
        assert ended["job_id"].startswith("accumulation_")
        assert ended["attempt"] == 2


def test_jobs_wait_while_the_disk_is_nearly_full(tmp_path: Path) -> None:
    with runner_home(tmp_path, free_disk_bytes=2**62) as it:

        async def story(home: Home) -> None:
            job = await submit(home, small_job())
            await asyncio.to_thread(wait_for, lambda: "jobs wait" in it.log(), "the runner says so")
            waiting = await home.store.jobs.get(job.id)
            assert waiting is not None
            assert (waiting.status, waiting.attempt) == (JobStatus.VALIDATING, 0)

        it.run(story)

"""A job that ends without success leaves no model, also when its ranks have published one."""

import asyncio
import dataclasses
from pathlib import Path

from onyx.jobs.job_directory import serves
from onyx.jobs.launch.launcher import ChildSpec
from onyx.jobs.launch.subprocess_launcher import SubprocessChild, SubprocessLauncher
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.runner.train_job import train
from onyx.jobs.status import JobStatus
from tests.jobs.claimed_job import claim_job, make_context
from tests.jobs.store_harness import StoreHarness


class Publishing(SubprocessLauncher):
    """Ranks that have published at once and then wait. The owner cancels the job at that moment."""

    context: RunnerContext
    job_id: str

    async def start(self, spec: ChildSpec) -> SubprocessChild:
        folder = self.context.settings.job_dir(self.job_id)
        for name in ("model", ".model.123.part", "snapshots/epoch-1"):
            (folder / name).mkdir(parents=True)
            (folder / name / "model.safetensors").write_bytes(b"x")
        await self.context.store.control.cancel(self.job_id)
        for keeper in self.context.keepers:
            keeper.beat_now()
        return await super().start(
            dataclasses.replace(spec, target="onyx.jobs.launch.self_test:main", arguments=("wait",))
        )


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_job_cancelled_while_it_publishes_leaves_no_model(harness: StoreHarness, tmp_path: Path) -> None:
    launcher = Publishing()
    context = launcher.context = await make_context(harness, tmp_path, launcher=launcher)
    claimed = await claim_job(harness, context)
    launcher.job_id = claimed.job.id
    await asyncio.wait_for(train(claimed, context), 60)
    job = await harness.store.jobs.get(claimed.job.id)
    assert job is not None
    assert job.status is JobStatus.CANCELLED
    assert left(context.settings.job_dir(job.id)) == ["attempts", "snapshots"]


async def test_the_model_is_served_after_success_and_snapshots_always(harness: StoreHarness) -> None:
    job = await harness.job()
    for status in JobStatus:
        ended = dataclasses.replace(job, status=status)
        assert serves(ended, job.id) is (status is JobStatus.SUCCEEDED)
        assert serves(ended, f"{job.id}:epoch-1")

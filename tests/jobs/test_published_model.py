"""A job that ends without success leaves no model, however far its ranks had come."""

import asyncio
import dataclasses
from pathlib import Path

from onyx.jobs.launch.launcher import ChildSpec
from onyx.jobs.launch.subprocess_launcher import SubprocessChild, SubprocessLauncher
from onyx.jobs.published_model import serves
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.runner.train_job import train
from onyx.jobs.status import JobStatus
from tests.jobs.prepared import context_of, running
from tests.jobs.world import World


class Publishing(SubprocessLauncher):
    """Its ranks have published when they begin to live, and then say no more. The job's owner cancels just then."""

    context: RunnerContext
    job_id: str

    async def start(self, spec: ChildSpec) -> SubprocessChild:
        folder = self.context.settings.job_dir(self.job_id)
        for name in ("model", ".model.123.part", "snapshots/epoch-1"):
            (folder / name).mkdir(parents=True)
            (folder / name / "model.safetensors").write_bytes(b"x")
        await self.context.store.requests.cancel(self.job_id)
        for keeper in self.context.keepers:
            keeper.beat_now()
        return await super().start(
            dataclasses.replace(spec, target="onyx.jobs.launch.self_test:main", arguments=("wait",))
        )


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_job_that_is_cancelled_while_it_publishes_leaves_no_model(world: World, tmp_path: Path) -> None:
    launcher = Publishing()
    context = launcher.context = await context_of(world, tmp_path, launcher=launcher)
    claimed = await running(world, context)
    launcher.job_id = claimed.job.id
    await asyncio.wait_for(train(claimed, context), 60)
    job = await world.store.jobs.get(claimed.job.id)
    assert job is not None
    assert job.status is JobStatus.CANCELLED
    assert left(context.settings.job_dir(job.id)) == ["attempts", "snapshots"]


async def test_the_model_is_served_after_success_and_snapshots_always(world: World) -> None:
    job = await world.job()
    for status in JobStatus:
        ended = dataclasses.replace(job, status=status)
        assert serves(ended, job.id) is (status is JobStatus.SUCCEEDED)
        assert serves(ended, f"{job.id}:epoch-1")

"""A job that was really planned for the devices of this host, claimed with them."""

from pathlib import Path

from onyx.jobs.bench import Bench
from onyx.jobs.fresh import FreshLauncher
from onyx.jobs.holder import this_process
from onyx.jobs.offer import needs_of, offer
from onyx.jobs.store import Store
from onyx.jobs.values import ClaimedJob
from onyx.jobs.work import Launcher
from onyx.settings import Settings
from onyx.training.attempt import Share
from onyx.training.prepared import Planned, PreparedJob
from tests.jobs.world import World

SAMPLES = 20


async def bench_of(world: World, home: Path, *, store: Store | None = None, launcher: Launcher | None = None) -> Bench:
    """A runner's bench with the CPU of this host."""
    settings = Settings(home=home, cpu_memory="3GB")
    store = store or world.store
    return Bench(
        settings=settings,
        store=store,
        launcher=launcher or FreshLauncher(),
        runner_id=await store.register_runner(this_process()),
        offered=(await offer(settings))[:1],
    )


async def running(world: World, bench: Bench) -> ClaimedJob:
    """The bench's runner holds a job and its device. Nothing else may be waiting."""
    job = await world.job()
    claimed = await world.store.claim_validating(bench.runner_id)
    assert claimed is not None
    share = Share(device="cpu:0", share=1.0, token_budget=64)
    document = PreparedJob(
        model_dir=bench.settings.home / "model",
        data_dir=bench.settings.home / "data",
        samples=SAMPLES,
        evaluation_samples=0,
        tokens=100,
        label_tokens=100,
        longest=10,
        lengths=[(16, SAMPLES)],
        truncated=0,
        bad_lines=0,
        planned=Planned(plan={"window": 2, "devices": []}, shares=[share], precision="float32"),
    )
    needs = needs_of(bench.offered, job.spec)
    await world.store.prepared(claimed.lease, needs, document.model_dump(mode="json"))
    training = await world.store.claim_queued(bench.runner_id, bench.lent)
    assert training is not None
    return training

"""A job planned for the devices of this host, claimed together with them."""

from pathlib import Path

from onyx.jobs.launch.launcher import Launcher
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from onyx.jobs.models import ClaimedJob
from onyx.jobs.process_identity import this_process
from onyx.jobs.runner.device_offers import needs_of, offer_devices
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.jobs.store.store import Store
from onyx.settings import Settings
from onyx.training.contract.attempt import Share
from onyx.training.contract.prepared import Planned, PreparedJob
from tests.jobs.store_harness import StoreHarness

SAMPLES = 20


async def make_context(
    harness: StoreHarness, home: Path, *, store: Store | None = None, launcher: Launcher | None = None
) -> RunnerContext:
    """A runner's context with the CPU of this host."""
    settings = Settings(home=home, cpu_memory="3GB")
    store = store or harness.store
    return RunnerContext(
        settings=settings,
        store=store,
        launcher=launcher or SubprocessLauncher(),
        runner_id=await store.runners.register(this_process()),
        offered=(await offer_devices(settings))[:1],
    )


async def claim_job(harness: StoreHarness, context: RunnerContext) -> ClaimedJob:
    """The context's runner holds a job and its device. Nothing else may be waiting."""
    job = await harness.job()
    claimed = await harness.store.claims.claim_validating(context.runner_id)
    assert claimed is not None
    share = Share(device="cpu:0", share=1.0, token_budget=64)
    document = PreparedJob(
        model_dir=context.settings.home / "model",
        data_dir=context.settings.home / "data",
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
    needs = needs_of(context.offered, job.spec)
    await harness.store.attempts.report_prepared(claimed.lease, needs, document.model_dump(mode="json"))
    training = await harness.store.claims.claim_queued(context.runner_id, context.lent)
    assert training is not None
    return training

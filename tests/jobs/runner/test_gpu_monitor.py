"""The GPUs of this host are those that a real executable called nvidia-smi prints."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from onyx.jobs.process_identity import this_process
from onyx.jobs.runner import bulletin, gpu_monitor
from onyx.jobs.runner.bulletin import STALE_SECONDS, Bulletin
from onyx.jobs.runner.device_offers import offer_devices
from onyx.jobs.runner.gpu_monitor import GpuMonitor, hot
from onyx.jobs.runner.runner_context import RunnerContext
from onyx.memory.devices.device import Device
from onyx.settings import Settings
from tests.jobs.store_harness import StoreHarness

NVIDIA_SMI_ROW = "0, GPU-aaaa, 37, 15360, 1024, 14336, 535.104.05, Tesla T4, 132, Disabled, Disabled, {}, 27.53"

Heat = Callable[[float], None]


@pytest.fixture
def heat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Heat:
    """Sets the temperature of this host's one GPU."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def set_to(celsius: float) -> None:
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{NVIDIA_SMI_ROW.format(celsius)}'\n")
        program.chmod(0o755)

    return set_to


async def make_context(harness: StoreHarness, home: Path) -> RunnerContext:
    """The context of a runner with one GPU."""
    settings = Settings(home=home)
    runner_id = await harness.store.runners.register(this_process())
    return RunnerContext(
        settings=settings,
        store=harness.store,
        launcher=SubprocessLauncher(),
        runner_id=runner_id,
        offered=await offer_devices(settings),
    )


async def warnings(harness: StoreHarness, job_id: str) -> list[str]:
    events = await harness.store.events.list(job_id)
    return [event.message for event in events if event.level == "warn"]


async def running_on_the_gpu(harness: StoreHarness, context: RunnerContext) -> str:
    lent = context.offered[0].lent
    job = await harness.queued(name=lent.name)
    claimed = await harness.store.claims.claim_queued(context.runner_id, [lent.model_copy(update={"kind": "cpu"})])
    assert claimed is not None
    return job.id


async def test_the_job_on_a_hot_gpu_is_warned_once_a_minute(
    harness: StoreHarness, tmp_path: Path, heat: Heat, monkeypatch: pytest.MonkeyPatch
) -> None:
    heat(84)
    context = await make_context(harness, tmp_path)
    monitor = GpuMonitor(context)
    job_id = await running_on_the_gpu(harness, context)
    await monitor.check()
    assert await warnings(harness, job_id) == []
    heat(91.5)
    await monitor.check()
    await monitor.check()
    assert await warnings(harness, job_id) == ["cuda:0 is at 91.5 °C, above 85 °C: it may slow down"]
    monkeypatch.setattr(gpu_monitor, "WARN_SECONDS", 0.0)
    await monitor.check()
    assert len(await warnings(harness, job_id)) == 2
    (event,) = await harness.store.events.list(job_id, newest_first=True, limit=1)
    assert event.kind == "message"
    assert event.data == {"temperatures": {"cuda:0": 91.5}, "limit": 85.0}


async def test_an_idle_hot_gpu_warns_no_job(harness: StoreHarness, tmp_path: Path, heat: Heat) -> None:
    heat(99)
    context = await make_context(harness, tmp_path)
    job = await harness.queued()
    await GpuMonitor(context).check()
    assert await warnings(harness, job.id) == []


async def test_a_runner_posts_its_bulletin(harness: StoreHarness, tmp_path: Path, heat: Heat) -> None:
    heat(50)
    context = await make_context(harness, tmp_path)
    context.tally.events, context.tally.trained_tokens = 3, 400
    await GpuMonitor(context).check()
    (posted,) = bulletin.read_all(context.settings.run_dir)
    assert (posted.runner_id, posted.events, posted.trained_tokens) == (context.runner_id, 3, 400)
    assert posted.gpus[0].temperature == 50
    bulletin.take_down(context.settings.run_dir, this_process().host, context.runner_id)
    assert bulletin.read_all(context.settings.run_dir) == []


def test_a_dead_runners_bulletin_is_not_read(tmp_path: Path) -> None:
    old = Bulletin(runner_id="runner-x", host="h", time=time.time() - STALE_SECONDS, events=1, trained_tokens=1)
    bulletin.post(tmp_path, old)
    assert bulletin.read_all(tmp_path) == []
    assert list((tmp_path / "runners").iterdir()) == []


def test_a_gpu_without_a_reading_is_not_hot() -> None:
    def gpu(celsius: float | None) -> Device:
        return Device(kind="cuda", index=0, name="T4", memory_total=1, memory_free=1, temperature=celsius)

    assert hot([gpu(None), gpu(85.0), gpu(85.1)], 85.0) == [gpu(85.1)]

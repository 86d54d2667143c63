"""Will it fit, and with which batch size? A helper process asks the planner; this one never imports torch."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onyx.jobs.files import read_json, write_json
from onyx.jobs.fresh import FreshLauncher
from onyx.jobs.private import close_directory, private_directory
from onyx.jobs.work import Launcher, Work
from onyx.memory.cpu import cpu_devices
from onyx.memory.device import Device
from onyx.memory.gpus import list_gpus_async, select
from onyx.memory.info import gpu_info
from onyx.settings import Settings
from onyx.training import niceness
from onyx.training.attempt import Failure
from onyx.training.estimate import Estimate, EstimateRequest
from onyx.training.prepared import HUB_TOKEN_VARIABLE, Roots

TARGET = "onyx.training.estimate:main"
PATIENCE = 120.0
"""Seconds for a plan that has to be probed first."""


async def optimal_batch_size(
    model: str,
    target: int,
    gpu_ids: Sequence[int] | None,
    settings: Settings,
    *,
    launcher: Launcher | None = None,
    imagined: Sequence[Device] = (),
    **options: Any,
) -> dict[str, Any]:
    """The documented answer; ValueError with what to change. `options` are fields of EstimateRequest."""
    gpus = await list_gpus_async()
    if gpu_ids is not None:
        gpus = select(gpus, list(gpu_ids))
    devices = list(imagined) or gpus or cpu_devices(settings.cpu_devices, settings.cpu_memory)
    plan = await estimate(model, target, devices, settings, launcher or FreshLauncher(), **options)
    return {
        "success": True,
        "target_effective_batch_size": target,
        "actual_batch_size_per_gpu": max(each["micro_batch"] for each in plan["devices"]),
        "total_gpus": len(imagined) or len(gpus),
        "accumulation_steps": plan["accumulation_steps"],
        "effective_batch_size": plan["window"],
        "gpu_info": gpu_info(list(imagined) or gpus),
        "plan": plan,
    }


async def estimate(
    model: str, target: int, devices: Sequence[Device], settings: Settings, launcher: Launcher, **options: Any
) -> dict[str, Any]:
    """The plan, made in a helper with a time limit."""
    private_directory(settings.home)
    close_directory(settings.run_dir)
    with tempfile.TemporaryDirectory(dir=settings.run_dir) as folder:
        out = Path(folder)
        roots = Roots(home=settings.home, models=settings.model_root, remote_code=settings.remote_code_models)
        request = EstimateRequest(model=model, roots=roots, window=target, devices=tuple(devices), out=out, **options)
        write_json(out / "request.json", request)
        await _run(launcher, out, settings)
        made = read_json(out / "plan.json", Estimate)
        failure = read_json(out / "error.json", Failure)
    if made is None:
        raise ValueError(failure.message if failure else "the planner gave no answer: see the service's log")
    return made.plan


async def _run(launcher: Launcher, out: Path, settings: Settings) -> None:
    token = settings.hub_token
    work = Work(
        name="onyx-plan",
        target=TARGET,
        arguments=(str(out / "request.json"),),
        log=out / "plan.log",
        environment={"OMP_NUM_THREADS": "1", "ONYX_HOME": str(settings.home)}
        | ({HUB_TOKEN_VARIABLE: token.get_secret_value()} if token else {}),
        niceness=niceness.HELPER,
    )
    try:
        async with asyncio.timeout(PATIENCE):  # waiting for a place with the runner counts, too
            child = await launcher.start(work)
            try:
                await child.wait()
            finally:
                child.close()
    except TimeoutError:
        raise ValueError(f"no plan within {PATIENCE:.0f} seconds: ask for a smaller model, or later") from None

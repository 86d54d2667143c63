"""The batch size that fits for a model. A helper process runs the planner, so that this one never imports torch."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onyx.jobs.files import close_directory, private_directory, read_json, write_json
from onyx.jobs.launch.launcher import ChildSpec, Launcher
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from onyx.memory.devices.cpu import cpu_devices
from onyx.memory.devices.device import Device
from onyx.memory.devices.gpus import gpu_info, list_gpus_async, select
from onyx.settings import Settings
from onyx.training.contract.attempt import Failure
from onyx.training.contract.child_process import Niceness
from onyx.training.contract.prepared import HUB_TOKEN_VARIABLE, Estimate, EstimateRequest, Roots

TARGET = "onyx.training.prepare.plan_estimate:main"
PLAN_SECONDS = 120.0
"""Time limit of a plan, which may have to measure the devices first."""


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
    """The documented answer, or ValueError with what to change.

    `options` are fields of EstimateRequest; `imagined` devices replace the real ones.
    """
    gpus = await list_gpus_async()
    if gpu_ids is not None:
        gpus = select(gpus, list(gpu_ids))
    devices = list(imagined) or gpus or cpu_devices(settings.cpu_devices, settings.cpu_memory)
    plan = await estimate(model, target, devices, settings, launcher or SubprocessLauncher(), **options)
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
    """The plan, made by a helper process within PLAN_SECONDS."""
    private_directory(settings.home)
    close_directory(settings.run_dir)
    with tempfile.TemporaryDirectory(dir=settings.run_dir) as folder:
        out = Path(folder)
        roots = Roots(home=settings.home, models=settings.model_root, remote_code=settings.remote_code_models)
        request = EstimateRequest(model=model, roots=roots, window=target, devices=tuple(devices), out=out, **options)
        write_json(out / "request.json", request)
        await _run(launcher, out, settings)
        answer = read_json(out / "plan.json", Estimate)
        failure = read_json(out / "error.json", Failure)
    if answer is None:
        raise ValueError(failure.message if failure else "the planner ended without a plan: see the service's log")
    return answer.plan


async def _run(launcher: Launcher, out: Path, settings: Settings) -> None:
    token = settings.hub_token
    spec = ChildSpec(
        name="onyx-plan",
        target=TARGET,
        arguments=(str(out / "request.json"),),
        log=out / "plan.log",
        environment={"OMP_NUM_THREADS": "1", "ONYX_HOME": str(settings.home)}
        | ({HUB_TOKEN_VARIABLE: token.get_secret_value()} if token else {}),
        niceness=Niceness.HELPER,
    )
    try:
        async with asyncio.timeout(PLAN_SECONDS):  # includes the wait until the runner accepts it
            child = await launcher.start(spec)
            try:
                await child.wait()
            finally:
                child.close()
    except TimeoutError:
        raise ValueError(
            f"no plan within {PLAN_SECONDS:.0f} seconds: try again later, or with a smaller model"
        ) from None

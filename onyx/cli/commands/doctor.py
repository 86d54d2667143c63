"""`onyx doctor`: is everything here that a service needs, and if not, what to do?"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from onyx.cli.commands.db import is_up_to_date, store_name
from onyx.cli.operator import read_settings
from onyx.cli.output import GIB, CommandFailure, Json, emit, gigabytes, say

if TYPE_CHECKING:
    from onyx.settings import Settings

OLDEST_PYTHON = (3, 11)
PACKAGES = {"torch": (2, 10), "transformers": (5, 0), "peft": (0, 18)}
"""Oldest versions that Onyx works with."""

SCANT_MEMORY, LOW_MEMORY = 1 * GIB, 4 * GIB
SCANT_DISK, LOW_DISK = 1 * GIB, 10 * GIB
"""Below the first nothing runs, below the second only small models do."""

FORK_SECONDS = 90.0
DRIVER = Path("/proc/driver/nvidia/version")

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class CheckResult:
    """What one check found."""

    name: str
    level: Level
    words: str
    advice: str | None = None


def python(settings: "Settings") -> CheckResult:
    here = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        return CheckResult("python", "fail", here, "install Python 3.11 or newer and make the environment with it")
    return CheckResult("python", "ok", here)


def packages(settings: "Settings") -> CheckResult:
    found = {name: _version(name) for name in PACKAGES}
    words = ", ".join(f"{name} {has or 'missing'}" for name, has in found.items())
    old = [name for name, least in PACKAGES.items() if _numbers(found[name]) < least]
    if old:
        return CheckResult("packages", "fail", words, f"{', '.join(old)}: pip install --upgrade onyx-finetune")
    return CheckResult("packages", "ok", words)


def gpus(settings: "Settings") -> CheckResult:
    from onyx.memory.devices.gpus import list_gpus

    found = list_gpus()
    if found:
        return CheckResult("gpus", "ok", ", ".join(f"{gpu.name} {gigabytes(gpu.memory_total)}" for gpu in found))
    if DRIVER.exists() or shutil.which("nvidia-smi"):
        advice = "see whether nvidia-smi works, and whether CUDA_VISIBLE_DEVICES hides them"
        return CheckResult("gpus", "warn", "a driver is here and shows no GPU", advice)
    return CheckResult(
        "gpus", "warn", "none: jobs train on the CPU", "fine for a try; for more, a host with an NVIDIA driver"
    )


def memory(settings: "Settings") -> CheckResult:
    from onyx.memory.devices.cpu import cpu_devices

    try:
        slices = cpu_devices(settings.cpu_devices, settings.cpu_memory)
    except ValueError as error:
        return CheckResult("memory", "fail", str(error), "correct ONYX_CPU_MEMORY")
    free, cores = sum(each.memory_free for each in slices), sum(each.cores or 0 for each in slices)
    words = f"{gigabytes(free)} free for training on {cores} cores, in {len(slices)} device(s)"
    if free < SCANT_MEMORY:
        return CheckResult(
            "memory", "fail", words, "free some memory, or raise ONYX_CPU_MEMORY or the container's limit"
        )
    advice = "only small models fit" if free < LOW_MEMORY else None
    return CheckResult("memory", "warn" if advice else "ok", words, advice)


def home(settings: "Settings") -> CheckResult:
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.home) as file:
            file.write(b"onyx")
            file.flush()
    except OSError as error:
        advice = "name a directory that this user may write to with ONYX_HOME"
        return CheckResult("home", "fail", f"{settings.home}: {error.strerror}", advice)
    return CheckResult("home", "ok", f"{settings.home} can be written to")


def disk(settings: "Settings") -> CheckResult:
    place = next(path for path in (settings.home, *settings.home.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    words = f"{gigabytes(free)} free under {settings.home}"
    if free < SCANT_DISK:
        return CheckResult("disk", "fail", words, "delete finished jobs with `onyx jobs delete`, or move ONYX_HOME")
    advice = "checkpoints of larger models need more" if free < LOW_DISK else None
    return CheckResult("disk", "warn" if advice else "ok", words, advice)


def store(settings: "Settings") -> CheckResult:
    try:
        migrated, where = is_up_to_date(settings), store_name(settings)
    except (CommandFailure, ValueError) as failure:
        return CheckResult(
            "store", "fail", str(failure), "see that the database runs and that ONYX_DATABASE_URL is right"
        )
    if migrated:
        return CheckResult("store", "ok", f"{where} is up to date")
    return CheckResult(
        "store", "warn", f"{where} has not this version's tables", "`onyx db upgrade`, or start the service"
    )


def forks(settings: "Settings") -> CheckResult:
    """A child of a warm template: what every rank is."""
    try:
        said = asyncio.run(asyncio.wait_for(_rehearse(), FORK_SECONDS))
    except TimeoutError:
        return CheckResult(
            "template", "fail", f"no child within {FORK_SECONDS:.0f} s", "see whether `import torch` works"
        )
    if said == "None True":
        return CheckResult("template", "ok", "forks children that have torch imported")
    if said == "None False":
        return CheckResult(
            "template", "warn", "cannot fork here: every rank starts a fresh interpreter, seconds slower"
        )
    return CheckResult(
        "template", "fail", f"a child did not do as it was told: {said[-200:]}", "see whether torch imports"
    )


async def _rehearse() -> str:
    from onyx.jobs.launch.fork_launcher import ForkLauncher
    from onyx.jobs.launch.launcher import ChildSpec

    launcher = ForkLauncher()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "rehearsal.log"
        try:
            child = await launcher.start(
                ChildSpec(
                    name="onyx-rehearsal",
                    target="onyx.jobs.launch.self_test:main",
                    arguments=("say", "ONYX_NOBODY_SETS_THIS"),
                    log=log,
                )
            )
            await child.wait()
            child.close()
        finally:
            await launcher.close()
        return log.read_text().strip()


def runner(settings: "Settings") -> CheckResult:
    from onyx.jobs.runner.runner_lock import is_locked, locked_by

    if is_locked(settings.run_dir):
        who = locked_by(settings.run_dir)
        return CheckResult(
            "runner", "ok", "one works for this home on this host" + (f" (pid {who.pid})" if who else "")
        )
    if settings.embedded_runner:
        return CheckResult("runner", "warn", "none is running", "`onyx serve` starts one")
    return CheckResult("runner", "warn", "none is running on this host", "start one with `onyx runner`")


CHECKS: tuple[Callable[["Settings"], CheckResult], ...] = (
    python,
    packages,
    gpus,
    memory,
    home,
    disk,
    store,
    forks,
    runner,
)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str | None) -> tuple[int, ...]:
    parts = (text or "0").split("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


def doctor(as_json: Json = False) -> None:
    """Check this host. Exit status 1 when something would keep a job from running."""
    settings = read_settings()
    found: list[CheckResult] = []
    for check in CHECKS:
        finding = check(settings)
        found.append(finding)
        if not as_json:
            _tell(finding)
    if as_json:
        emit([asdict(finding) for finding in found])
    if any(finding.level == "fail" for finding in found):
        raise typer.Exit(1)


def _tell(finding: CheckResult) -> None:
    mark = f"{finding.level:<4}"
    if sys.stdout.isatty():
        mark = typer.style(mark, fg=_COLOURS[finding.level], bold=True)
    say(f"{mark} {finding.name:<12} {finding.words}")
    if finding.advice:
        say(f"                  → {finding.advice}")

"""`onyx doctor`: checks that this host has what a service needs, and says what to do where it has not."""

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
from onyx.cli.output import GIB, CommandError, Json, gigabytes, print_json, print_line

if TYPE_CHECKING:
    from onyx.settings import Settings

OLDEST_PYTHON = (3, 11)
PACKAGES = {"torch": (2, 10), "transformers": (5, 0), "peft": (0, 18)}
"""The oldest version of each package that Onyx works with."""

LEAST_MEMORY, LOW_MEMORY = 1 * GIB, 4 * GIB
LEAST_DISK, LOW_DISK = 1 * GIB, 10 * GIB
"""Below the first no job runs; below the second only jobs with small models do."""

FORK_SECONDS = 90.0
DRIVER = Path("/proc/driver/nvidia/version")

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class CheckResult:
    """What one check found."""

    name: str
    level: Level
    words: str
    """What the check found, in one line."""

    advice: str | None = None
    """What the operator can do about it."""


def python(settings: "Settings") -> CheckResult:
    current = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        advice = "install Python 3.11 or newer and create the environment with it"
        return CheckResult("python", "fail", current, advice)
    return CheckResult("python", "ok", current)


def packages(settings: "Settings") -> CheckResult:
    found = {name: _version(name) for name in PACKAGES}
    words = ", ".join(f"{name} {installed or 'missing'}" for name, installed in found.items())
    old = [name for name, oldest in PACKAGES.items() if _numbers(found[name]) < oldest]
    if old:
        return CheckResult("packages", "fail", words, f"{', '.join(old)}: pip install --upgrade onyx-finetune")
    return CheckResult("packages", "ok", words)


def gpus(settings: "Settings") -> CheckResult:
    from onyx.memory.devices.gpus import list_gpus

    found = list_gpus()
    if found:
        return CheckResult("gpus", "ok", ", ".join(f"{gpu.name} {gigabytes(gpu.memory_total)}" for gpu in found))
    if DRIVER.exists() or shutil.which("nvidia-smi"):
        advice = "check that nvidia-smi works and that CUDA_VISIBLE_DEVICES does not hide the GPUs"
        return CheckResult("gpus", "warn", "an NVIDIA driver is installed but shows no GPU", advice)
    advice = "enough for small models; larger ones need a host with an NVIDIA driver"
    return CheckResult("gpus", "warn", "none: jobs train on the CPU", advice)


def memory(settings: "Settings") -> CheckResult:
    from onyx.memory.devices.cpu import cpu_devices

    try:
        slices = cpu_devices(settings.cpu_devices, settings.cpu_memory)
    except ValueError as error:
        return CheckResult("memory", "fail", str(error), "correct ONYX_CPU_MEMORY")
    free, cores = sum(each.memory_free for each in slices), sum(each.cores or 0 for each in slices)
    words = f"{gigabytes(free)} free for training on {cores} cores, in {len(slices)} device(s)"
    if free < LEAST_MEMORY:
        advice = "free some memory, or raise ONYX_CPU_MEMORY or the container's limit"
        return CheckResult("memory", "fail", words, advice)
    low = "only small models fit" if free < LOW_MEMORY else None
    return CheckResult("memory", "warn" if low else "ok", words, low)


def home(settings: "Settings") -> CheckResult:
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.home) as file:
            file.write(b"onyx")
            file.flush()
    except OSError as error:
        advice = "set ONYX_HOME to a directory that this user may write to"
        return CheckResult("home", "fail", f"{settings.home}: {error.strerror}", advice)
    return CheckResult("home", "ok", f"{settings.home} is writable")


def disk(settings: "Settings") -> CheckResult:
    existing = next(path for path in (settings.home, *settings.home.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    words = f"{gigabytes(free)} free under {settings.home}"
    if free < LEAST_DISK:
        return CheckResult("disk", "fail", words, "delete finished jobs with `onyx jobs delete`, or move ONYX_HOME")
    advice = "checkpoints of larger models need more" if free < LOW_DISK else None
    return CheckResult("disk", "warn" if advice else "ok", words, advice)


def store(settings: "Settings") -> CheckResult:
    try:
        migrated, url = is_up_to_date(settings), store_name(settings)
    except (CommandError, ValueError) as error:
        return CheckResult(
            "store", "fail", str(error), "check that the database runs and that ONYX_DATABASE_URL is right"
        )
    if migrated:
        return CheckResult("store", "ok", f"{url} is up to date")
    return CheckResult("store", "warn", f"{url} is not at this version", "run `onyx db upgrade`, or start the service")


def fork_server(settings: "Settings") -> CheckResult:
    """Start a process as every rank is started: forked from the fork server, which has torch imported."""
    try:
        output = asyncio.run(asyncio.wait_for(_start_child(), FORK_SECONDS))
    except TimeoutError:
        words, advice = f"no child process within {FORK_SECONDS:.0f} s", "check that `import torch` works"
        return CheckResult("template", "fail", words, advice)
    if output == "None True":
        return CheckResult("template", "ok", "forks children that have torch imported")
    if output == "None False":
        words = "cannot fork here: every rank starts a new interpreter, which takes seconds longer"
        return CheckResult("template", "warn", words)
    words = f"a child process failed its self-test: {output[-200:]}"
    return CheckResult("template", "fail", words, "check that `import torch` works")


async def _start_child() -> str:
    """What the self-test wrote: the value of a variable that is not set, and whether torch was imported."""
    from onyx.jobs.launch.fork_launcher import ForkLauncher
    from onyx.jobs.launch.launcher import ChildSpec

    launcher = ForkLauncher()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "self-test.log"
        try:
            child = await launcher.start(
                ChildSpec(
                    name="onyx-self-test",
                    target="onyx.jobs.launch.self_test:main",
                    arguments=("say", "ONYX_UNSET"),
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
        owner = locked_by(settings.run_dir)
        return CheckResult(
            "runner", "ok", "running for this home on this host" + (f" (pid {owner.pid})" if owner else "")
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
    fork_server,
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
    results: list[CheckResult] = []
    for check in CHECKS:
        result = check(settings)
        results.append(result)
        if not as_json:
            _print_result(result)
    if as_json:
        print_json([asdict(result) for result in results])
    if any(result.level == "fail" for result in results):
        raise typer.Exit(1)


def _print_result(result: CheckResult) -> None:
    level = f"{result.level:<4}"
    if sys.stdout.isatty():
        level = typer.style(level, fg=_COLOURS[result.level], bold=True)
    print_line(f"{level} {result.name:<12} {result.words}")
    if result.advice:
        print_line(f"                  → {result.advice}")

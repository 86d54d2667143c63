import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from onyx.jobs.launch.child import resolve
from onyx.jobs.launch.fork_launcher import ForkLauncher
from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec, Launcher
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from tests.waiting import PATIENCE

NICENESS = 7

Scenario = Callable[[Launcher, Path], Coroutine[Any, Any, None]]


@asynccontextmanager
async def launching(make: Callable[[], Launcher]) -> AsyncIterator[Launcher]:
    launcher = make()
    try:
        yield launcher
    finally:
        await launcher.close()


def rehearsal(folder: Path, *arguments: str, **environment: str) -> ChildSpec:
    return ChildSpec(
        name="onyx-rank-7",
        target="onyx.jobs.launch.self_test:main",
        arguments=arguments,
        log=folder / "logs" / "child.log",
        environment=environment,
        niceness=NICENESS,
    )


async def comes_to(child: Child, expected: ChildExit) -> None:
    child.beat()
    assert await asyncio.wait_for(child.wait(), PATIENCE) == expected
    assert await child.wait() == expected  # and again
    child.close()


async def life(launcher: Launcher, folder: Path) -> None:
    await comes_to(await launcher.start(rehearsal(folder, "exit", "0")), ChildExit(0))
    await comes_to(await launcher.start(rehearsal(folder, "exit", "20")), ChildExit(20))
    await comes_to(await launcher.start(rehearsal(folder, "die", "9")), ChildExit(None, signal.SIGKILL))
    await comes_to(await launcher.start(rehearsal(folder, "nonsense")), ChildExit(1))
    assert "unknown order: nonsense" in (folder / "logs" / "child.log").read_text()
    await comes_to(await launcher.start(rehearsal(folder, "say", "ONYX_WORD", ONYX_WORD="hello")), ChildExit(0))
    assert "hello " in (folder / "logs" / "child.log").read_text()
    await names_and_lifelines(launcher, folder)


async def names_and_lifelines(launcher: Launcher, folder: Path) -> None:
    first = await launcher.start(rehearsal(folder, "wait"))
    second = await launcher.start(rehearsal(folder, "wait"))
    first.beat()
    await asyncio.to_thread(_named, first.pid)
    # The same from a template that has stepped back itself as from an interpreter that has not.
    assert os.getpriority(os.PRIO_PROCESS, first.pid) == max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    first.close()
    assert await asyncio.wait_for(first.wait(), PATIENCE) == ChildExit(0)
    second.send(signal.SIGTERM)
    assert await asyncio.wait_for(second.wait(), PATIENCE) == ChildExit(None, signal.SIGTERM)
    second.send(signal.SIGTERM)  # to nobody: no error
    second.close()


def _named(pid: int) -> None:
    """Wait for its name: a fresh interpreter puts it on once it is there."""
    while Path(f"/proc/{pid}/comm").read_text() != "onyx-rank-7\n":
        time.sleep(0.01)


async def many_at_once(launcher: Launcher, folder: Path) -> None:
    children = await asyncio.gather(*[launcher.start(rehearsal(folder, "exit", str(n))) for n in range(12)])
    ends = await asyncio.wait_for(asyncio.gather(*[child.wait() for child in children]), PATIENCE)
    assert [end.status for end in ends] == list(range(12))


def test_a_fresh_interpreter(tmp_path: Path) -> None:
    async def run() -> None:
        async with launching(SubprocessLauncher) as launcher:
            await life(launcher, tmp_path)

    asyncio.run(run())


def test_a_fork_of_the_fork_server(tmp_path: Path) -> None:
    async def run() -> None:
        async with launching(ForkLauncher) as launcher:
            await life(launcher, tmp_path)
            await many_at_once(launcher, tmp_path)
            assert isinstance(launcher, ForkLauncher)
            await it_ends_before_the_launcher_hears_of_it(launcher, tmp_path)
            await the_fork_server_dies(launcher, tmp_path)
        assert "hello True" in (tmp_path / "logs" / "child.log").read_text()  # torch was there already

    asyncio.run(run())


async def it_ends_before_the_launcher_hears_of_it(launcher: ForkLauncher, folder: Path) -> None:
    """It ran once, and is not started again."""
    starting = asyncio.create_task(launcher.start(rehearsal(folder, "say", "ONYX_WORD", ONYX_WORD="once")))
    await asyncio.sleep(0)  # the template has the request; from here on this loop stands still
    _reaped(psutil.Process(launcher.fork_server_pid), folder / "logs" / "child.log")
    await comes_to(await starting, ChildExit(0))
    assert (folder / "logs" / "child.log").read_text().count("once") == 1


def _reaped(template: psutil.Process, log: Path) -> None:
    """Wait until a child has spoken and the template has none any more."""
    deadline = time.monotonic() + 60
    while "once" not in log.read_text() or template.children():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def the_fork_server_dies(launcher: ForkLauncher, folder: Path) -> None:
    """Its children count as lost, and the next child comes from a new template."""
    child = await launcher.start(rehearsal(folder, "wait"))
    assert launcher.fork_server_pid is not None
    os.kill(launcher.fork_server_pid, signal.SIGKILL)
    assert await asyncio.wait_for(child.wait(), PATIENCE) == ChildExit(None)
    await comes_to(await launcher.start(rehearsal(folder, "exit", "3")), ChildExit(3))


@pytest.mark.parametrize("target", ["os:system", "onyx.jobs.launch.child", "onyxx.evil:main", ":main"])
def test_only_onyx_s_own_functions_are_started(target: str) -> None:
    with pytest.raises(ValueError, match="not one of Onyx's own"):
        resolve(target)

"""Both launchers run the same scenarios with real children; then what only a fork server can get wrong."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from onyx.jobs.launch.child import resolve
from onyx.jobs.launch.fork_launcher import ForkLauncher
from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec, Launcher
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from tests.waiting import PATIENCE, wait_for

NICENESS = 7


@asynccontextmanager
async def launching(make: Callable[[], Launcher]) -> AsyncIterator[Launcher]:
    launcher = make()
    try:
        yield launcher
    finally:
        await launcher.close()


def self_test(folder: Path, *arguments: str, **environment: str) -> ChildSpec:
    return ChildSpec(
        name="onyx-rank-7",
        target="onyx.jobs.launch.self_test:main",
        arguments=arguments,
        log=folder / "logs" / "child.log",
        environment=environment,
        niceness=NICENESS,
    )


async def ends_with(child: Child, expected: ChildExit) -> None:
    child.beat()
    assert await asyncio.wait_for(child.wait(), PATIENCE) == expected
    assert await child.wait() == expected  # a second wait gives the same
    child.close()


async def exits_and_output(launcher: Launcher, folder: Path) -> None:
    await ends_with(await launcher.start(self_test(folder, "exit", "0")), ChildExit(0))
    await ends_with(await launcher.start(self_test(folder, "exit", "20")), ChildExit(20))
    await ends_with(await launcher.start(self_test(folder, "die", "9")), ChildExit(None, signal.SIGKILL))
    await ends_with(await launcher.start(self_test(folder, "nonsense")), ChildExit(1))
    assert "unknown order: nonsense" in (folder / "logs" / "child.log").read_text()
    await ends_with(await launcher.start(self_test(folder, "say", "ONYX_WORD", ONYX_WORD="hello")), ChildExit(0))
    assert "hello " in (folder / "logs" / "child.log").read_text()
    await names_and_lifelines(launcher, folder)


async def names_and_lifelines(launcher: Launcher, folder: Path) -> None:
    first = await launcher.start(self_test(folder, "wait"))
    second = await launcher.start(self_test(folder, "wait"))
    first.beat()
    await asyncio.to_thread(_wait_for_name, first.pid)
    # The same from a fork server, which has lowered its own priority, as from an interpreter that has not.
    assert os.getpriority(os.PRIO_PROCESS, first.pid) == max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
    first.close()
    assert await asyncio.wait_for(first.wait(), PATIENCE) == ChildExit(0)
    second.send(signal.SIGTERM)
    assert await asyncio.wait_for(second.wait(), PATIENCE) == ChildExit(None, signal.SIGTERM)
    second.send(signal.SIGTERM)  # after its end: no error
    second.close()


def _wait_for_name(pid: int) -> None:
    """A fresh interpreter sets its name some time after its start."""
    comm = Path(f"/proc/{pid}/comm")
    wait_for(lambda: comm.read_text() == "onyx-rank-7\n", "the child has its name")


async def many_at_once(launcher: Launcher, folder: Path) -> None:
    children = await asyncio.gather(*[launcher.start(self_test(folder, "exit", str(n))) for n in range(12)])
    exits = await asyncio.wait_for(asyncio.gather(*[child.wait() for child in children]), PATIENCE)
    assert [each.status for each in exits] == list(range(12))


def test_a_fresh_interpreter(tmp_path: Path) -> None:
    async def run() -> None:
        async with launching(SubprocessLauncher) as launcher:
            await exits_and_output(launcher, tmp_path)

    asyncio.run(run())


def test_a_fork(tmp_path: Path) -> None:
    async def run() -> None:
        async with launching(ForkLauncher) as launcher:
            assert isinstance(launcher, ForkLauncher)
            await a_start_of_the_fork_server_is_cancelled(launcher, tmp_path)
            await exits_and_output(launcher, tmp_path)
            await many_at_once(launcher, tmp_path)
            await it_ends_before_the_launcher_hears_of_it(launcher, tmp_path)
            await a_start_is_cancelled(launcher, tmp_path)
            await a_start_is_cancelled_when_its_answer_is_there(launcher, tmp_path)
            await the_fork_server_dies(launcher, tmp_path)
        assert "hello True" in (tmp_path / "logs" / "child.log").read_text()  # torch was imported before the fork

    asyncio.run(run())


async def a_start_of_the_fork_server_is_cancelled(launcher: ForkLauncher, folder: Path) -> None:
    """The next start begins it again."""
    starting = asyncio.create_task(launcher.start(self_test(folder, "exit", "0")))
    await asyncio.sleep(0)
    await cancel(starting)
    await asyncio.wait_for(launcher.warm(), PATIENCE)


async def it_ends_before_the_launcher_hears_of_it(launcher: ForkLauncher, folder: Path) -> None:
    """It ran once, and is not started again."""
    starting = asyncio.create_task(launcher.start(self_test(folder, "say", "ONYX_WORD", ONYX_WORD="once")))
    await asyncio.sleep(0)  # the fork server has the request; from here on this loop stands still
    log = folder / "logs" / "child.log"
    wait_for(lambda: "once" in log.read_text(), "the child has run")
    _wait_for_no_child(launcher)
    await ends_with(await starting, ChildExit(0))
    assert log.read_text().count("once") == 1


async def a_start_is_cancelled(launcher: ForkLauncher, folder: Path) -> None:
    """Its child is killed, and the next start gets a child of its own."""
    starting = asyncio.create_task(launcher.start(self_test(folder, "die", "0")))  # signal 0: it waits for ever
    await asyncio.sleep(0)  # the fork server has the request, the launcher no answer
    await cancel(starting)
    await ends_with(await launcher.start(self_test(folder, "exit", "5")), ChildExit(5))
    await asyncio.to_thread(_wait_for_no_child, launcher)


async def a_start_is_cancelled_when_its_answer_is_there(launcher: ForkLauncher, folder: Path) -> None:
    """The same at the latest moment."""
    for rounds in range(1, 6):
        starting = asyncio.create_task(launcher.start(self_test(folder, "die", "0")))
        await asyncio.sleep(0)
        fork_server = psutil.Process(launcher.fork_server_pid)
        wait_for(lambda server=fork_server: bool(server.children()), "the child was forked")  # type: ignore[misc]
        for _ in range(rounds):
            await asyncio.sleep(0)
        if not starting.done():
            await cancel(starting)
        else:
            (await starting).close()
            (await starting).send(signal.SIGKILL)
        await asyncio.to_thread(_wait_for_no_child, launcher)
    await ends_with(await launcher.start(self_test(folder, "exit", "6")), ChildExit(6))


async def cancel(task: asyncio.Task[Child]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


def _wait_for_no_child(launcher: ForkLauncher) -> None:
    fork_server = psutil.Process(launcher.fork_server_pid)
    wait_for(lambda: not fork_server.children(), "no child is left")


async def the_fork_server_dies(launcher: ForkLauncher, folder: Path) -> None:
    """Its children count as lost, and the next child comes from a new fork server."""
    child = await launcher.start(self_test(folder, "wait"))
    assert launcher.fork_server_pid is not None
    os.kill(launcher.fork_server_pid, signal.SIGKILL)
    assert await asyncio.wait_for(child.wait(), PATIENCE) == ChildExit(None)
    await ends_with(await launcher.start(self_test(folder, "exit", "3")), ChildExit(3))


@pytest.mark.parametrize("target", ["os:system", "onyx.jobs.launch.child", "onyxx.evil:main", ":main"])
def test_only_onyx_s_own_functions_are_started(target: str) -> None:
    with pytest.raises(ValueError, match="not one of Onyx's own"):
        resolve(target)

"""LaunchService, with real children: what is asked for is run, and nothing else is."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from onyx.jobs.files import close_directory
from onyx.jobs.ids import make_key_id
from onyx.jobs.launch import launch_service as errands
from onyx.jobs.launch.launch_service import LaunchClient, LaunchService
from onyx.jobs.launch.launcher import ChildSpec
from onyx.jobs.launch.subprocess_launcher import SubprocessChild, SubprocessLauncher
from onyx.jobs.wakeup import socket_address
from tests.waiting import PATIENCE

IS_ID = "onyx.jobs.ids:is_id"
"""Something short that Onyx can do: it ends with 1 for an id and with 0 for anything else."""

READ = "onyx.training.prepare.plan_estimate:main"
"""Something that takes as long as its file does: for ever, when that is a pipe."""


class Counting(SubprocessLauncher):
    """A launcher that knows what it started."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[ChildSpec] = []

    async def start(self, work: ChildSpec) -> SubprocessChild:
        self.started.append(work)
        return await super().start(work)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(errands, "TARGETS", frozenset({IS_ID, READ}))
    close_directory(tmp_path / "run")
    return tmp_path / "run"


@asynccontextmanager
async def runner(run_dir: Path) -> AsyncIterator[Counting]:
    """The runner's side, until all that it began has ended."""
    launcher = Counting()
    side = LaunchService(run_dir, launcher)
    await side.open()
    yield launcher
    side.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=PATIENCE)
    await asyncio.sleep(0)  # closed transports leave in the loop's next round


def work(folder: Path, argument: str, target: str = IS_ID) -> ChildSpec:
    return ChildSpec(name="errand", target=target, arguments=(argument,), log=folder / "errand.log", environment={})


async def test_the_runner_runs_it_and_says_how_it_ended(run_dir: Path, tmp_path: Path) -> None:
    async with runner(run_dir) as launcher:
        child = await LaunchClient(run_dir).start(work(tmp_path, make_key_id()))
        assert (await child.wait()).status == 1
        child.close()
        assert len(launcher.started) == 1


async def test_whoever_leaves_wants_no_answer(run_dir: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with runner(run_dir):
        child = await LaunchClient(run_dir).start(work(tmp_path, str(tmp_path / "pipe"), READ))
        process = psutil.Process(child.pid)
        child.close()
        await asyncio.to_thread(psutil.wait_procs, [process], timeout=PATIENCE)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "asked",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"not json\n",
        b"x" * 200_000 + b"\n",
        json.dumps({"target": "os:system", "arguments": ["id"], "log": "x"}).encode() + b"\n",
        json.dumps({"target": IS_ID, "arguments": [], "log": "x", "more": 1}).encode() + b"\n",
    ],
    ids=lambda asked: repr(asked[:24]),
)
async def test_nothing_else_is_run(run_dir: Path, tmp_path: Path, asked: bytes) -> None:
    async with runner(run_dir) as launcher:
        with socket_address(run_dir, "errands") as address:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(asked)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        assert launcher.started == []
        child = await LaunchClient(run_dir).start(work(tmp_path, "nothing"))
        assert (await child.wait()).status == 0
        child.close()


def test_only_this_user_may_speak_to_the_runner(run_dir: Path) -> None:
    run_dir.chmod(0o777)
    close_directory(run_dir)
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700


async def test_without_a_runner_a_fresh_interpreter_does_it(run_dir: Path, tmp_path: Path) -> None:
    child = await LaunchClient(run_dir).start(work(tmp_path, make_key_id()))
    assert (await child.wait()).status == 1
    child.close()

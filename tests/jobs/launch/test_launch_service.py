"""LaunchService starts real children: the targets that clients may start, and no others."""

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
from onyx.jobs.launch import launch_service
from onyx.jobs.launch.launch_service import LaunchClient, LaunchService
from onyx.jobs.launch.launcher import ChildSpec
from onyx.jobs.launch.subprocess_launcher import SubprocessChild, SubprocessLauncher
from onyx.jobs.wakeup import socket_address
from tests.waiting import PATIENCE

IS_ID = "onyx.jobs.ids:is_id"
"""A function that ends at once: with 1 for an id and with 0 for anything else."""

READ = "onyx.training.prepare.plan_estimate:main"
"""A function that reads a file: it never ends if that is a pipe."""


class RecordingLauncher(SubprocessLauncher):
    """Records what it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[ChildSpec] = []

    async def start(self, spec: ChildSpec) -> SubprocessChild:
        self.started.append(spec)
        return await super().start(spec)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(launch_service, "TARGETS", frozenset({IS_ID, READ}))
    close_directory(tmp_path / "run")
    return tmp_path / "run"


@asynccontextmanager
async def runner(run_dir: Path) -> AsyncIterator[RecordingLauncher]:
    """A launch service, until every task that it started has ended."""
    launcher = RecordingLauncher()
    service = LaunchService(run_dir, launcher)
    await service.open()
    yield launcher
    service.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=PATIENCE)
    await asyncio.sleep(0)  # the loop drops closed transports in its next round


def spec_of(folder: Path, argument: str, target: str = IS_ID) -> ChildSpec:
    return ChildSpec(name="onyx-test", target=target, arguments=(argument,), log=folder / "child.log", environment={})


async def test_the_runner_starts_a_child_and_reports_its_exit(run_dir: Path, tmp_path: Path) -> None:
    async with runner(run_dir) as launcher:
        child = await LaunchClient(run_dir).start(spec_of(tmp_path, make_key_id()))
        assert (await child.wait()).status == 1
        child.close()
        assert len(launcher.started) == 1


async def test_a_client_that_disconnects_ends_its_child(run_dir: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with runner(run_dir):
        child = await LaunchClient(run_dir).start(spec_of(tmp_path, str(tmp_path / "pipe"), READ))
        process = psutil.Process(child.pid)
        child.close()
        await asyncio.to_thread(psutil.wait_procs, [process], timeout=PATIENCE)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "request_line",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"not json\n",
        b"x" * 200_000 + b"\n",
        json.dumps({"target": "os:system", "arguments": ["id"], "log": "x"}).encode() + b"\n",
        json.dumps({"target": IS_ID, "arguments": [], "log": "x", "more": 1}).encode() + b"\n",
    ],
    ids=lambda line: repr(line[:24]),
)
async def test_no_other_request_starts_a_child(run_dir: Path, tmp_path: Path, request_line: bytes) -> None:
    async with runner(run_dir) as launcher:
        with socket_address(run_dir, "launch") as address:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(request_line)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        assert launcher.started == []
        child = await LaunchClient(run_dir).start(spec_of(tmp_path, "nothing"))
        assert (await child.wait()).status == 0
        child.close()


def test_only_this_user_may_enter_the_run_directory(run_dir: Path) -> None:
    run_dir.chmod(0o777)
    close_directory(run_dir)
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700


async def test_without_a_runner_a_fresh_interpreter_starts(run_dir: Path, tmp_path: Path) -> None:
    child = await LaunchClient(run_dir).start(spec_of(tmp_path, make_key_id()))
    assert (await child.wait()).status == 1
    child.close()

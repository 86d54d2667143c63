"""What the API has the runner's fork server start for it: a plan, a model to try. One connection, one child.

Plain files carry what the child reads and writes; the connection is its lifeline. Whoever asks needs no torch, and
there is one warm template per host, not one per process that asks.
"""

import asyncio
import json
import logging
import signal
import socket
from pathlib import Path
from typing import Any

from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec, Launcher
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher
from onyx.jobs.wakeup import socket_address
from onyx.memory.devices.cpu import cpu_cores

logger = logging.getLogger(__name__)

_NAME = "errands"
TRIAL = "onyx.training.chat.main:main"
"""Holds a model in memory for as long as it is asked questions: one on a host, and only where no training needs it."""

TARGETS = frozenset({"onyx.training.prepare.plan_estimate:main", TRIAL})
"""What may be asked for."""

BEAT_SECONDS = 1.0


class LaunchService:
    """The runner's side."""

    def __init__(self, run_dir: Path, launcher: Launcher) -> None:
        self._run_dir = run_dir
        self._launcher = launcher
        self._places = asyncio.Semaphore(cpu_cores())
        self._trial_place = asyncio.Semaphore(1)
        self._trials: set[Child] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen where whoever may enter the run directory can speak."""
        (self._run_dir / _NAME).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(self._run_dir, _NAME) as address:
            listener.bind(address)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            (self._run_dir / _NAME).unlink(missing_ok=True)

    def end_chats(self) -> None:
        """A training has been lent memory of this host: whoever only tries a model goes."""
        for child in self._trials:
            child.send(signal.SIGKILL)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            work = _work(json.loads(await reader.readuntil(b"\n")))
            async with self._trial_place if work.target == TRIAL else self._places:
                ended = await self._run(work, reader, writer)
            _say(writer, {"status": ended.status, "signal": ended.signal})
        except (OSError, EOFError, ValueError, KeyError, TypeError, asyncio.LimitOverrunError) as error:
            logger.warning("an errand was not run: %s", type(error).__name__, extra={"action": "errand_refused"})
        finally:
            writer.close()

    async def _run(self, work: ChildSpec, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ChildExit:
        child = await self._launcher.start(work)
        if work.target == TRIAL:
            self._trials.add(child)
        try:
            _say(writer, {"pid": child.pid})
            return await _watch(child, reader)
        finally:
            self._trials.discard(child)
            child.send(signal.SIGKILL)
            child.close()


async def _watch(child: Child, reader: asyncio.StreamReader) -> ChildExit:
    """Until the child ends. Whoever asked and is gone wants no answer: the child is killed."""
    ending = asyncio.create_task(child.wait())
    leaving = asyncio.create_task(reader.read())
    try:
        while not ending.done():
            child.beat()
            await asyncio.wait({ending, leaving}, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                child.send(signal.SIGKILL)
                await ending
    finally:
        leaving.cancel()
    return ending.result()


def _work(asked: dict[str, Any]) -> ChildSpec:
    if asked["target"] not in TARGETS:
        raise ValueError("not an errand")
    return ChildSpec(**{**asked, "arguments": tuple(asked["arguments"]), "log": Path(asked["log"])})


def _say(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


class RemoteChild:
    """The asker's side of a child that the runner holds."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self._writer = writer
        self._ending = asyncio.create_task(_ending(reader))

    async def wait(self) -> ChildExit:
        return await asyncio.shield(self._ending)

    def send(self, number: int) -> None:
        """All that can be said from here is: stop."""
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.close()

    def beat(self) -> None:
        """The runner beats."""

    def close(self) -> None:
        self._writer.close()


async def _ending(reader: asyncio.StreamReader) -> ChildExit:
    line = await reader.readline()
    return ChildExit(**json.loads(line)) if line else ChildExit(None)


class LaunchClient:
    """Asks this host's runner; without one a fresh interpreter does it, seconds later."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._fresh = SubprocessLauncher()

    async def start(self, work: ChildSpec) -> Child:
        try:
            with socket_address(self._run_dir, _NAME) as address:
                reader, writer = await asyncio.open_unix_connection(address)
        except OSError:
            return await self._fresh.start(work)
        fields = vars(work) | {"log": str(work.log), "environment": dict(work.environment)}
        _say(writer, fields)
        started = b""
        try:
            started = await reader.readline()
        finally:
            if not started:  # nobody waits any more, or the runner is gone
                writer.close()
        if not started:
            return await self._fresh.start(work)
        return RemoteChild(json.loads(started)["pid"], reader, writer)

    async def close(self) -> None:
        """Nothing is kept between errands."""

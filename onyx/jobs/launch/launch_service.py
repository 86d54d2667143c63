"""Starts children for the API from the runner's fork server: a plan, or a chat model. One connection, one child.

Files carry what the child reads and writes; the connection is its lifeline. So the API needs no torch, and a host needs
one fork server, not one per API process.
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

_NAME = "launch"
CHAT_TARGET = "onyx.training.chat.main:main"
"""The chat process, which keeps a model in memory: one on a host, and only while no training needs the memory."""

TARGETS = frozenset({"onyx.training.prepare.plan_estimate:main", CHAT_TARGET})
"""What a client may start."""

BEAT_SECONDS = 1.0


class LaunchService:
    """The runner's side."""

    def __init__(self, run_dir: Path, launcher: Launcher) -> None:
        self._run_dir = run_dir
        self._launcher = launcher
        self._slots = asyncio.Semaphore(cpu_cores())
        self._chat_slot = asyncio.Semaphore(1)
        self._chats: set[Child] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen in the run directory, which only processes of this user may enter."""
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
        """A training job has got CPU memory of this host: kill chat processes."""
        for child in self._chats:
            child.send(signal.SIGKILL)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            spec = _parse(json.loads(await reader.readuntil(b"\n")))
            async with self._chat_slot if spec.target == CHAT_TARGET else self._slots:
                child_exit = await self._run(spec, reader, writer)
            _send(writer, {"status": child_exit.status, "signal": child_exit.signal})
        except (OSError, EOFError, ValueError, KeyError, TypeError, asyncio.LimitOverrunError) as error:
            logger.warning("refused to start a child: %s", type(error).__name__, extra={"action": "launch_refused"})
        finally:
            writer.close()

    async def _run(self, spec: ChildSpec, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ChildExit:
        child = await self._launcher.start(spec)
        if spec.target == CHAT_TARGET:
            self._chats.add(child)
        try:
            _send(writer, {"pid": child.pid})
            return await _watch(child, reader)
        finally:
            self._chats.discard(child)
            child.send(signal.SIGKILL)
            child.close()


async def _watch(child: Child, reader: asyncio.StreamReader) -> ChildExit:
    """Wait for the child's end. If the client closes the connection, kill the child."""
    ending = asyncio.create_task(child.wait())
    closed = asyncio.create_task(reader.read())
    try:
        while not ending.done():
            child.beat()
            await asyncio.wait({ending, closed}, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                child.send(signal.SIGKILL)
                await ending
    finally:
        closed.cancel()
    return ending.result()


def _parse(request: dict[str, Any]) -> ChildSpec:
    if request["target"] not in TARGETS:
        raise ValueError("not a target that clients may start")
    return ChildSpec(**{**request, "arguments": tuple(request["arguments"]), "log": Path(request["log"])})


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


class RemoteChild:
    """The client's side of a child that the runner started."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self._writer = writer
        self._ending = asyncio.create_task(_ending(reader))

    async def wait(self) -> ChildExit:
        return await asyncio.shield(self._ending)

    def send(self, number: int) -> None:
        """Kill it: from here no other signal can be sent."""
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.close()

    def beat(self) -> None:
        """The runner does it."""

    def close(self) -> None:
        self._writer.close()


async def _ending(reader: asyncio.StreamReader) -> ChildExit:
    line = await reader.readline()
    return ChildExit(**json.loads(line)) if line else ChildExit(None)


class LaunchClient:
    """Starts children through this host's runner, or without one in a fresh interpreter, which takes seconds longer."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._subprocess_launcher = SubprocessLauncher()

    async def start(self, spec: ChildSpec) -> Child:
        try:
            with socket_address(self._run_dir, _NAME) as address:
                reader, writer = await asyncio.open_unix_connection(address)
        except OSError:
            return await self._subprocess_launcher.start(spec)
        fields = vars(spec) | {"log": str(spec.log), "environment": dict(spec.environment)}
        _send(writer, fields)
        started = b""
        try:
            started = await reader.readline()
        finally:
            if not started:  # the caller was cancelled, or the runner is gone
                writer.close()
        if not started:
            return await self._subprocess_launcher.start(spec)
        return RemoteChild(json.loads(started)["pid"], reader, writer)

    async def close(self) -> None:
        """There is nothing to close."""

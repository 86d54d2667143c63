"""Starts children as forks of a warm fork server, or in a fresh interpreter where it cannot fork."""

import asyncio
import errno
import itertools
import json
import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

from onyx.jobs.launch.child import inherited
from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec
from onyx.jobs.launch.lifeline import Lifeline
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher, exit_of, open_log

logger = logging.getLogger(__name__)

FORK_SERVER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # read once, when torch loads: active waiting of several ranks is 25 × slower
    "GOMP_SPINCOUNT": "10000",  # but for the microseconds until the next product: a tenth of a step
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a check for CUDA must not open it
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

_LOST = ChildExit(None)


class ForkRefusedError(RuntimeError):
    """The fork server cannot fork."""


class ForkedChild:
    """A fork of the fork server, which reports its exit."""

    def __init__(self, pid: int, pidfd: int, lifeline: Lifeline) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._lifeline = lifeline
        self._exit: asyncio.Future[ChildExit] = asyncio.get_running_loop().create_future()

    async def wait(self) -> ChildExit:
        return await asyncio.shield(self._exit)

    def send(self, signal: int) -> None:
        if self._exit.done():
            return
        try:
            signal_process(self._pidfd, signal)
        except ProcessLookupError:
            logger.debug("process %d has ended before signal %d", self.pid, signal)

    def beat(self) -> None:
        self._lifeline.beat()

    def close(self) -> None:
        self._lifeline.close()

    def discard(self) -> None:
        """Kill it: the caller that wanted it is gone."""
        self.send(signal.SIGKILL)
        self.close()

    def finish(self, child_exit: ChildExit) -> None:
        if not self._exit.done():
            self._exit.set_result(child_exit)
            os.close(self._pidfd)


def signal_process(pidfd: int, number: int) -> None:
    """Send a signal to exactly this process: its pid could be reused by another."""
    signal.pidfd_send_signal(pidfd, signal.Signals(number))


@dataclass
class _Request:
    """A fork that was requested and not answered yet."""

    lifeline: Lifeline
    child: asyncio.Future[ForkedChild]


class ForkLauncher:
    """Keeps one fork server running and asks it for forks.

    Every request has an id, and so has its answer. A caller that is cancelled in between leaves an answer that no other
    caller gets: its child is killed.
    """

    def __init__(self) -> None:
        self._subprocess_launcher = SubprocessLauncher()
        self._channel: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[None] | None = None
        self._lock = asyncio.Lock()
        """One request at a time, so that requests never fill the socket."""

        self._ids = itertools.count()
        self._requests: dict[int, _Request] = {}
        self._children: dict[int, ForkedChild] = {}
        """By pid, until the fork server reports the exit."""

        self._listener: asyncio.Task[None] | None = None

    @property
    def fork_server_pid(self) -> int | None:
        """The fork server that runs now."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def warm(self) -> None:
        """Start the fork server, if it does not run, and wait until it can fork."""
        async with self._lock:
            if self._channel is None:
                await self._spawn()
        assert self._ready is not None  # noqa: S101 - _spawn makes it
        await asyncio.shield(self._ready)

    async def start(self, spec: ChildSpec) -> Child:
        try:
            await self._warm_or_refuse()
            return await self._fork(spec)
        except ForkRefusedError as refusal:  # and no other error: after a fork the child already runs
            logger.warning("the fork server cannot fork (%s): starting a fresh interpreter", refusal)
            return await self._subprocess_launcher.start(spec)

    async def close(self) -> None:
        """End the fork server. Children run until their lifelines end."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)  # it still watches the channel
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def _warm_or_refuse(self) -> None:
        try:
            await self.warm()
        except OSError as error:
            raise ForkRefusedError(str(error)) from error

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "onyx.jobs.launch.fork_server",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    env=inherited() | FORK_SERVER_ENVIRONMENT,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            ours.close()  # a fork server that has started exits by this
            raise
        self._channel = ours
        self._ready = asyncio.get_running_loop().create_future()
        self._listener = asyncio.create_task(self._listen(ours, self._ready))

    async def _fork(self, spec: ChildSpec) -> ForkedChild:
        async with self._lock:
            number, request = next(self._ids), _Request(Lifeline(), asyncio.get_running_loop().create_future())
            try:
                with open_log(spec.log) as log:
                    self._send(_message(number, spec), request.lifeline.reader, log.fileno())
                self._requests[number] = request
                return await request.child
            except BaseException:
                self._abandon(request)
                raise

    def _abandon(self, request: _Request) -> None:
        """The caller wants no child any more. One that is forked later is discarded with the answer."""
        request.lifeline.close()
        request.child.cancel()
        if not request.child.cancelled() and request.child.exception() is None:
            request.child.result().discard()

    def _send(self, message: bytes, *descriptors: int) -> None:
        if self._channel is None:
            raise ForkRefusedError("the fork server died")
        try:
            socket.send_fds(self._channel, [message], descriptors)
        except OSError as error:
            raise ForkRefusedError(str(error)) from error

    async def _listen(self, channel: socket.socket, ready: asyncio.Future[None]) -> None:
        try:
            while (received := await _receive(channel)) is not None:
                self._handle(*received, ready)
        except Exception:  # no exit of a child could be reported any more: the next start makes a new fork server
            logger.exception("unreadable message of the fork server", extra={"action": "fork_server_broken"})
        self._fork_server_gone(channel, ready)

    def _handle(self, message: dict[str, Any], descriptors: list[int], ready: asyncio.Future[None]) -> None:
        if "ready" in message:
            ready.set_result(None)
        elif "ended" in message:
            if (child := self._children.pop(message["ended"], None)) is not None:
                child.finish(exit_of(message["code"]))
        else:
            self._answer(self._requests.pop(message["id"]), message, descriptors)

    def _answer(self, request: _Request, message: dict[str, Any], descriptors: list[int]) -> None:
        if "refused" in message:
            _fail(request, ForkRefusedError(message["refused"]))
        elif not descriptors:
            _fail(request, OSError(errno.EMFILE, "this process has no descriptor left for a child"))
        else:
            child = ForkedChild(int(message["started"]), descriptors[0], request.lifeline)
            self._children[child.pid] = child
            if request.child.cancelled():
                child.discard()
            else:
                request.lifeline.handed_over()
                request.child.set_result(child)

    def _fork_server_gone(self, channel: socket.socket, ready: asyncio.Future[None]) -> None:
        """Its children are killed and count as lost: no process can report their exits any more."""
        logger.warning("the fork server is gone: its %d children count as lost", len(self._children))
        channel.close()
        if channel is self._channel:
            self._channel = None
        if not ready.done():
            ready.set_exception(ConnectionError("the fork server died before it was ready"))
            ready.exception()  # read once, so that asyncio does not warn when no caller waits for it
        for request in self._requests.values():
            _fail(request, ForkRefusedError("the fork server died"))
        self._requests.clear()
        for child in self._children.values():
            child.send(signal.SIGKILL)
            child.finish(_LOST)
        self._children.clear()


def _fail(request: _Request, error: Exception) -> None:
    request.lifeline.close()
    if not request.child.cancelled():
        request.child.set_exception(error)


def _message(number: int, spec: ChildSpec) -> bytes:
    fields = {
        "id": number,
        "name": spec.name,
        "target": spec.target,
        "arguments": list(spec.arguments),
        "environment": dict(spec.environment),
        "niceness": spec.niceness,
    }
    return json.dumps(fields).encode()


async def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and the descriptors that came with it; None when the fork server is gone."""
    while True:
        try:
            packet, descriptors, _, _ = socket.recv_fds(channel, 65536, maxfds=1)
        except BlockingIOError:
            await _readable(channel)
            continue
        except OSError:
            return None
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return (json.loads(packet), descriptors) if packet else None


async def _readable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(channel, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(channel)

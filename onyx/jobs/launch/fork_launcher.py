"""The local launcher: forks from a warm template, and starts a fresh interpreter where that cannot be."""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import sys
from typing import Any

from onyx.jobs.launch.child import inherited
from onyx.jobs.launch.launcher import Child, ChildExit, ChildSpec
from onyx.jobs.launch.lifeline import Lifeline
from onyx.jobs.launch.subprocess_launcher import SubprocessLauncher, ended, open_log

logger = logging.getLogger(__name__)

FORK_SERVER_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # read once, when torch loads: active waiting of several ranks is 25 × slower
    "GOMP_SPINCOUNT": "10000",  # but for the microseconds until the next product: a tenth of a step
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking whether there is CUDA must not open it
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

_LOST = ChildExit(None)


class ForkedChild:
    """A fork of the template. Its end is reported by the template; if that dies, by the process's own descriptor."""

    def __init__(self, pid: int, pidfd: int, lifeline: Lifeline) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._lifeline = lifeline
        self.end: asyncio.Future[ChildExit] = asyncio.get_running_loop().create_future()

    async def wait(self) -> ChildExit:
        return await asyncio.shield(self.end)

    def send(self, signal: int) -> None:
        if self.end.done():
            return
        try:
            signal_process(self._pidfd, signal)
        except ProcessLookupError:
            logger.debug("process %d has ended before signal %d", self.pid, signal)

    def beat(self) -> None:
        self._lifeline.beat()

    def close(self) -> None:
        self._lifeline.close()

    def finish(self, how: ChildExit) -> None:
        if not self.end.done():
            self.end.set_result(how)
            os.close(self._pidfd)


def signal_process(pidfd: int, number: int) -> None:
    """A signal to exactly this process: a pid could be somebody else's by now."""
    signal.pidfd_send_signal(pidfd, signal.Signals(number))


class ForkLauncher:
    """Keeps one template warm and asks it for forks."""

    def __init__(self) -> None:
        self._fresh = SubprocessLauncher()
        self._channel: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[None] | None = None
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._asking = asyncio.Lock()
        self._children: dict[int, ForkedChild] = {}
        self._ended: dict[int, int] = {}
        self._listener: asyncio.Task[None] | None = None

    @property
    def fork_server_pid(self) -> int | None:
        """The template that runs now."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def warm(self) -> None:
        """Start the template, if it does not run, and wait until it can fork."""
        async with self._asking:
            if self._channel is None:
                await self._spawn()
        assert self._ready is not None  # noqa: S101 - _spawn makes it
        await asyncio.shield(self._ready)

    async def start(self, work: ChildSpec) -> Child:
        try:
            await self._warm_or_refuse()
            return await self._fork(work)
        except ForkRefusedError as refusal:  # and nothing else: after a fork the work has begun
            logger.warning("no fork from the template (%s): starting a fresh interpreter", refusal)
            return await self._fresh.start(work)

    async def close(self) -> None:
        """End the template. Children go on until their lifelines end."""
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
        self._channel = ours
        self._ready = asyncio.get_running_loop().create_future()
        self._answers = asyncio.Queue()
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
        self._listener = asyncio.create_task(self._listen(ours, self._ready))

    async def _fork(self, work: ChildSpec) -> ForkedChild:
        lifeline = Lifeline()
        request = json.dumps(
            {
                "name": work.name,
                "target": work.target,
                "arguments": list(work.arguments),
                "environment": dict(work.environment),
                "niceness": work.niceness,
            }
        ).encode()
        try:
            async with self._asking:  # answers come in the order of requests
                with open_log(work.log) as log:
                    self._send(request, lifeline.reader, log.fileno())
                answer = await self._answers.get()
            child = ForkedChild(*_started(answer), lifeline)
        except BaseException:
            lifeline.close()
            raise
        lifeline.handed_over()
        self._children[child.pid] = child
        self._settle()
        return child

    def _send(self, request: bytes, *descriptors: int) -> None:
        if self._channel is None:
            raise ForkRefusedError("the template died")
        try:
            socket.send_fds(self._channel, [request], descriptors)
        except OSError as error:
            raise ForkRefusedError(str(error)) from error

    async def _listen(self, channel: socket.socket, ready: asyncio.Future[None]) -> None:
        try:
            while (heard := await _receive(channel)) is not None:
                self._take(*heard, ready)
        except Exception:  # without it no end of a child would be heard of: start over with a new template
            logger.exception("the template said what cannot be understood", extra={"action": "template_broken"})
        self._fork_server_gone(channel, ready)

    def _take(self, message: dict[str, Any], descriptors: list[int], ready: asyncio.Future[None]) -> None:
        if "ready" in message:
            ready.set_result(None)
        elif "ended" in message:
            self._ended[message["ended"]] = message["code"]
            self._settle()
        else:
            self._answers.put_nowait(message | {"descriptors": descriptors})

    def _settle(self) -> None:
        """Tell children of their ends. An end can be heard of before the child is known here."""
        for pid in self._ended.keys() & self._children.keys():
            self._children.pop(pid).finish(ended(self._ended.pop(pid)))

    def _fork_server_gone(self, channel: socket.socket, ready: asyncio.Future[None]) -> None:
        """Nobody can say any more how its forks end: they are killed, and count as lost."""
        logger.warning("the template is gone: its %d children count as lost", len(self._children))
        channel.close()
        if channel is self._channel:
            self._channel = None
        if not ready.done():
            ready.set_exception(ConnectionError("the template died before it was ready"))
            ready.exception()  # read once, so that nobody warns when no one waits for it
        self._answers.put_nowait({"refused": "the template died"})
        for child in self._children.values():
            child.send(signal.SIGKILL)
            child.finish(_LOST)
        self._children.clear()


async def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and the descriptors that came with it; None when the template is gone."""
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


def _started(answer: dict[str, Any]) -> tuple[int, int]:
    """The child's pid and its descriptor."""
    if "started" not in answer:
        raise ForkRefusedError(answer["refused"])
    if not answer["descriptors"]:
        raise OSError(errno.EMFILE, "this process has no descriptor left for a child")
    return int(answer["started"]), int(answer["descriptors"][0])


class ForkRefusedError(RuntimeError):
    """The template would not fork."""

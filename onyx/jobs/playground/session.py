"""The connection to a chat process, which has one model in memory."""

import asyncio
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onyx.jobs.launch.launch_service import CHAT_TARGET
from onyx.jobs.launch.launcher import Child, ChildSpec, Launcher
from onyx.jobs.wakeup import socket_address
from onyx.settings import Settings
from onyx.training.contract.attempt import Failure
from onyx.training.contract.chat_protocol import SOCKET, STOP, GenerateRequest, LoadRequest, Reply
from onyx.training.contract.child_process import Niceness
from onyx.training.contract.spec import Frozen

STOP_SECONDS = 10.0
"""For a model to stop generating: it stops at its next token, unless it still reads a long prompt."""

GONE = Failure(
    code="model_unloaded",
    message="the model's process is gone, perhaps because a training needed its memory: try again",
)


class ChatSessionError(Exception):
    """There is no answer, or it broke off."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass
class ChatSession:
    """One chat process and the connection to it."""

    child: Child
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def alive(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()

    async def load(self, choice: LoadRequest) -> None:
        """Load the model; ChatSessionError when that is not possible."""
        await self._send(choice)
        await self._receive()

    async def ask(self, request: GenerateRequest, put: Callable[[Reply], None]) -> None:
        """Call `put` with each line of the answer. When this is cancelled the model stops generating."""
        await self._send(request)
        try:
            while not (reply := await self._receive()).last:
                put(reply)
        except ChatSessionError:
            raise
        except BaseException:
            await self._stop()
            raise
        put(reply)

    async def end(self) -> None:
        """Kill the process."""
        self._kill()
        await self.child.wait()

    async def _receive(self) -> Reply:
        try:
            line = await self.reader.readline()
        except (OSError, ValueError):
            line = b""
        if not line:
            self._kill()
            raise ChatSessionError(GONE)
        reply = Reply.model_validate_json(line)
        if reply.failure is not None:
            raise ChatSessionError(reply.failure)
        return reply

    async def _send(self, value: Frozen) -> None:
        try:
            self.writer.write(value.model_dump_json().encode() + b"\n")
            await self.writer.drain()
        except OSError:
            self._kill()
            raise ChatSessionError(GONE) from None

    async def _stop(self) -> None:
        """Stop the answer, so that the next request can be sent. A model that does not stop is killed."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                self.writer.write(STOP)
                while not (await self._receive()).last:
                    pass
        except ChatSessionError:
            return  # it has stopped, or the process is gone
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        self.writer.close()
        self.child.send(signal.SIGKILL)
        self.child.close()


async def start_session(settings: Settings, launcher: Launcher) -> ChatSession:
    """Start a chat process. It loads a model when it gets a LoadRequest."""
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=settings.run_dir, prefix="try-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        socket_address(Path(folder), SOCKET) as address,
    ):
        listener.bind(address)
        listener.listen(1)
        listener.setblocking(False)
        child = await launcher.start(_spec(settings, folder))
        try:
            connection = await _accept(listener, child)
        except BaseException:
            child.send(signal.SIGKILL)
            child.close()
            raise
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    return ChatSession(child, reader, writer)


async def _accept(listener: socket.socket, child: Child) -> socket.socket:
    loop = asyncio.get_running_loop()
    accepting = asyncio.create_task(loop.sock_accept(listener))
    ending = asyncio.create_task(child.wait())
    try:
        await asyncio.wait({accepting, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not accepting.done():
            raise ChatSessionError(GONE)
        return accepting.result()[0]
    finally:
        for task in (accepting, ending):
            task.cancel()
        await asyncio.wait({accepting, ending})


def _spec(settings: Settings, folder: str) -> ChildSpec:
    return ChildSpec(
        name="onyx-try",
        target=CHAT_TARGET,
        arguments=(folder,),
        log=settings.run_dir / "try.log",
        environment={"CUDA_VISIBLE_DEVICES": "", "ONYX_HOME": str(settings.home)},
        niceness=Niceness.CHAT,
    )

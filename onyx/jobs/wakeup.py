"""A nudge from whoever made a job to the runner beside it, so that nobody polls fast and nobody waits long."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from onyx.jobs.files import close_directory

_NAME = "wake"


def wake_runner(run_dir: Path) -> None:
    """Tell the runner of this home that there is something to do. It looks by itself too, only less often."""
    with (
        contextlib.suppress(OSError),
        socket_address(run_dir, _NAME) as address,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.setblocking(False)
        sender.sendto(b".", address)


class WakeupListener:
    """The runner's ear."""

    def __init__(self, run_dir: Path) -> None:
        close_directory(run_dir)
        self._path = run_dir / _NAME
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with socket_address(run_dir, _NAME) as address:
            self._socket.bind(address)
        self._socket.setblocking(False)
        self._event = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def ring(self) -> None:
        """Wake whoever waits, from inside."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Until a nudge, or for so long; whether there was a nudge."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        nudged = self._event.is_set()
        self._event.clear()
        return nudged

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(64):
                self._event.set()


@contextlib.contextmanager
def socket_address(run_dir: Path, name: str) -> Iterator[str]:
    """A socket's path through a descriptor of its directory: an address has room for 107 bytes, a home may not."""
    directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)

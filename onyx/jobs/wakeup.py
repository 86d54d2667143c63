"""Wakes the runner on this host when a client has made or changed a job, so that it need not poll often."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from onyx.jobs.files import close_directory

_NAME = "wake"


def wake_runner(run_dir: Path) -> None:
    """Tell the runner of this home that there may be something to do. Without this it looks once a second."""
    with (
        contextlib.suppress(OSError),
        socket_address(run_dir, _NAME) as address,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.setblocking(False)
        sender.sendto(b".", address)


class WakeupListener:
    """The runner's side: a datagram socket in the run directory."""

    def __init__(self, run_dir: Path) -> None:
        close_directory(run_dir)
        self._path = run_dir / _NAME
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with socket_address(run_dir, _NAME) as address:
            self._socket.bind(address)
        self._socket.setblocking(False)
        self._event = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def wake(self) -> None:
        """End the wait from within the runner."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait to be woken, for at most so long; whether it was."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        woken = self._event.is_set()
        self._event.clear()
        return woken

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(64):
                self._event.set()


@contextlib.contextmanager
def socket_address(folder: Path, name: str) -> Iterator[str]:
    """A short address of a Unix socket in `folder`: an address has at most 107 bytes, a home's path may have more."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)

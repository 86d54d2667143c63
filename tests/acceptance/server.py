"""The service as a process of its own, on a port of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.api.service import settings

PATIENCE = 60.0


class Server:
    """A running service."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def memory(self) -> int:
        """Bytes that the process holds."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=10).status_code == 200
        except httpx.HTTPError:
            return False

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(home: Path, host: str = "127.0.0.1", **more: Any) -> Iterator[Server]:
    """Without a runner, unless `embedded_runner` asks for one."""
    port = free_port()
    log = home.parent / f"server-{port}.log"
    command = ["uvicorn", "--factory", "onyx.api.app:create_app", "--host", host, "--port", str(port)]
    environment = os.environ | settings(home, **more).environment()
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=output, stderr=output)
    try:
        it = Server(process, port, log)
        deadline = time.monotonic() + PATIENCE
        while not it.is_up():
            assert process.poll() is None, it.log
            assert time.monotonic() < deadline, it.log
            time.sleep(0.05)
        yield it
    finally:
        process.terminate()
        process.wait(PATIENCE)

"""The real service in a process of its own, on a free loopback port."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from onyx.settings import Settings
from tests.acceptance.place import settings, share_cache, wait_for

CODE = """
import sys, uvicorn
from onyx.api.app import create_app
uvicorn.run(create_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


class Server:
    """One API process. Its runner is its own affair."""

    def __init__(self, at: Settings) -> None:
        self.settings = at
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.api = f"{self.url}/gradient-accumulation"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait_for_ready: bool = True) -> None:
        self.settings.home.mkdir(parents=True, exist_ok=True)
        with (self.settings.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CODE, str(self.port)],
                env=os.environ | self.settings.environment(),
                stdout=log,
                stderr=log,
            )
        if wait_for_ready:
            wait_for(lambda: self.answers("/readyz"), "the service is ready")

    def answers(self, path: str) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return httpx.get(f"{self.url}{path}", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def log(self) -> str:
        return (self.settings.home / "server.log").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """The service and the runner that it started."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        for pid in runners_of(self.settings.home):
            os.kill(pid, signal.SIGKILL)


def runners_of(home: Path) -> list[int]:
    """The pids of the runners of this home."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "comm").read_text().strip()
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if name == "onyx-runner" and f"ONYX_HOME={home}".encode() in environment:
            found.append(int(process.name))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(home: Path, **more: Any) -> Iterator[Server]:
    """A service that is ready."""
    share_cache(home)
    server = Server(settings(home, **more))
    try:
        server.start()
        yield server
    finally:
        server.close()

"""The real API in a process of its own, on a free loopback port, with settings that a test chooses."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil

from onyx.settings import Settings
from tests.acceptance.runner_home import settings
from tests.planner_cache import share_planner_cache
from tests.waiting import PATIENCE, wait_for


class ApiServer:
    """One API process. A runner that it starts survives when the process is killed."""

    def __init__(self, at: Settings, host: str = "127.0.0.1") -> None:
        self.settings = at
        self.host = host
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.api = f"{self.url}/gradient-accumulation"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def memory(self) -> int:
        """Bytes of the process's resident memory."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def log(self) -> str:
        return (self.settings.home / "server.log").read_text()

    def start(self, *, until: str | None = None) -> None:
        """Start it, and wait until this path answers: by default the one that says that the service is ready."""
        self.settings.home.mkdir(parents=True, exist_ok=True)
        # `onyx serve` refuses an address that other hosts can reach; uvicorn with the app does not.
        serve = (
            ["onyx.cli", "serve"] if self.host == "127.0.0.1" else ["uvicorn", "--factory", "onyx.api.app:create_app"]
        )
        command = [*serve, "--host", self.host, "--port", str(self.port)]
        with (self.settings.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=os.environ | {"ONYX_LOG_LEVEL": "warning"} | self.settings.environment(),
                stdout=log,
                stderr=log,
            )
        path = until or ("/readyz" if self.settings.embedded_runner else "/healthz")
        wait_for(lambda: self.answers(path), f"the service answers {path}")

    def answers(self, path: str = "/healthz") -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        wire = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            wire.request("GET", path)
            return wire.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            wire.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Stop the service, and kill the runner that it started."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE)
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
def api_server(home: Path, host: str = "127.0.0.1", **more: Any) -> Iterator[ApiServer]:
    """A service that is ready to answer."""
    share_planner_cache(home)
    server = ApiServer(settings(home, **more), host)
    try:
        server.start()
        yield server
    finally:
        server.close()

"""A real server process with a real runner beside it, and what tests do to it."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.place import Place, settings, share_cache, wait_for


class Server:
    """uvicorn with Onyx's app, on a port of its own. The runner is the place's: it outlives the server."""

    def __init__(self, home: Path, **more: Any) -> None:
        share_cache(home)
        self.place = Place(settings(home, embedded_runner=False, **more))
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        home = self.place.settings.home
        with (home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "uvicorn", "--factory", "onyx.api.app:create_app"),
                    *("--port", str(self.port), "--log-level", "warning"),
                ],
                env=os.environ | self.place.settings.environment(),
                stdout=log,
                stderr=log,
            )
        wait_for(self._answers, "the server answers")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return (self.place.settings.home / "server.log").read_text()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5):  # noqa: S310 - our own
                return True
        except (urllib.error.URLError, OSError):
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            return False


@contextmanager
def server(home: Path, **more: Any) -> Iterator[Server]:
    """A server that answers, with its runner started."""
    it = Server(home, **more)
    try:
        it.place.start_runner()
        it.start()
        yield it
    finally:
        it.kill()
        it.place.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

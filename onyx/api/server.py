"""The process behind `onyx serve`: uvicorn, and a way to leave that loses nothing."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from onyx.api.app import create_app
from onyx.api.app_context import ContextProvider
from onyx.jobs.runner.autostart import RunnerProcess
from onyx.settings import Settings

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5
"""For requests that are being answered when the service is told to stop."""

SLACK_SECONDS = 10.0
"""What a runner may take to leave on top of the time that ranks have to save."""


class Server(uvicorn.Server):
    """Serves until a signal. The first one lets everything end well, a second one hurries."""

    def __init__(self, settings: Settings, on_ready: Callable[[], None]) -> None:
        app = create_app(settings)
        super().__init__(
            uvicorn.Config(
                app, lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=DRAIN_SECONDS
            )
        )
        self._provider: ContextProvider = app.state.context_provider
        self._on_ready = on_ready
        self._patience = settings.grace_seconds + SLACK_SECONDS
        self._runner: RunnerProcess | None = None
        self._hurry = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what every request shares is looked through no more: that pause showed in the slowest answers
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Uvicorn's own way raises the signal again at the end, which would leave no time for the runner."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave)
        yield

    def _leave(self) -> None:
        if self.should_exit:
            self.force_exit = True
            self._hurry.set()
            return
        self.should_exit = True
        logger.info("stopping: no new requests, and ranks save", extra={"action": "stopping"})
        self._runner = self._provider.leave()

    async def serve_and_leave(self, listener: socket.socket) -> None:
        """Until the last request is answered and the runner beside this process has saved and left."""
        await self.serve([listener])
        if self._runner is None:
            return
        leaving = asyncio.create_task(self._runner.gone(self._patience))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({leaving, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not (leaving.done() and leaving.result()):
            logger.warning(
                "the runner (pid %d) still saves: it leaves by itself",
                self._runner.pid,
                extra={"action": "runner_left"},
            )
        await _end(leaving, hurry)
        self._runner.close()


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def listen(host: str, port: int) -> socket.socket:
    """A socket of this address; OSError when it cannot be had. Port 0 is a free one."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener

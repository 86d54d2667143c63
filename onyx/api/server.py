"""The process behind `onyx serve`: uvicorn, with a shutdown that also stops the embedded runner."""

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
"""Time that open requests get when the service stops."""

RUNNER_EXIT_SECONDS = 10.0
"""Time that the runner gets to exit, on top of the time that its ranks have to save."""


class Server(uvicorn.Server):
    """Serves until SIGTERM or SIGINT. The first signal waits for requests and the runner, a second one does not."""

    def __init__(self, settings: Settings, on_ready: Callable[[], None]) -> None:
        app = create_app(settings)
        super().__init__(
            uvicorn.Config(
                app, lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=DRAIN_SECONDS
            )
        )
        self._provider: ContextProvider = app.state.context_provider
        self._on_ready = on_ready
        self._runner_seconds = settings.grace_seconds + RUNNER_EXIT_SECONDS
        self._runner: RunnerProcess | None = None
        self._hurry = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # the collector skips what all requests share: its pauses showed in the slowest answers
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without uvicorn's own handler, which raises the signal again and leaves the runner no time."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
            self._hurry.set()
            return
        self.should_exit = True
        logger.info("stopping: no new requests; running jobs are saved", extra={"action": "stopping"})
        self._runner = self._provider.stop()

    async def serve_until_stopped(self, listener: socket.socket) -> None:
        """Serve until the last request is answered and the embedded runner has saved its jobs and exited."""
        await self.serve([listener])
        if self._runner is None:
            return
        exiting = asyncio.create_task(self._runner.gone(self._runner_seconds))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({exiting, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not (exiting.done() and exiting.result()):
            logger.warning(
                "the runner (pid %d) is still saving; it will exit by itself",
                self._runner.pid,
                extra={"action": "runner_left"},
            )
        await _cancel(exiting, hurry)
        self._runner.close()


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to this address; OSError if that fails. Port 0 stands for any free port."""
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

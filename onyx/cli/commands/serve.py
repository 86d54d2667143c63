"""`onyx serve`: the service in the foreground, with a runner beside it."""

import asyncio
import errno
from typing import TYPE_CHECKING, Annotated

import typer

from onyx import __version__
from onyx.cli.operator import read_settings, start_logging, with_store
from onyx.cli.output import USAGE, CommandFailure, Json, emit, say

if TYPE_CHECKING:
    import socket

    from onyx.jobs.store.store import Store
    from onyx.settings import Settings


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for a free one.")] = 8000,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Serve other hosts without API keys: somebody else checks them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; then running jobs save and wait in the queue."""
    settings = read_settings()
    if allow_anonymous:
        settings = settings.model_copy(update={"allow_anonymous": True})
    start_logging(settings)
    if settings.embedded_runner and host in ("127.0.0.1", "localhost", "::1"):
        _start_runner(settings)  # first: it takes as long to start as the service, on another core
    keys = _active_keys(settings)
    _check_open(host, keys, settings)
    listener = _listen(host, port)

    from onyx.api.server import Server

    where = _address(host, listener.getsockname()[1])
    server = Server(settings, on_ready=lambda: _greet(where, keys, settings, as_json))
    asyncio.run(server.serve_and_leave(listener))


def _start_runner(settings: "Settings") -> None:
    from onyx.jobs.files import close_directory, private_directory
    from onyx.jobs.runner.autostart import start_runner

    try:
        private_directory(settings.home)
        close_directory(settings.run_dir)
        start_runner(settings)
    except OSError as error:
        raise CommandFailure(f"{settings.home} cannot be used: {error.strerror}; name another with ONYX_HOME") from None


def _active_keys(settings: "Settings") -> int:
    return with_store(settings, _count)


async def _count(store: "Store") -> int:
    return sum(key.revoked_at is None for key in await store.keys.list())


def _check_open(host: str, keys: int, settings: "Settings") -> None:
    from onyx.api.http.caller import is_loopback

    if not (keys or settings.allow_anonymous or is_loopback(host)):
        raise CommandFailure(
            f"{host} can be reached by others and there are no API keys: make one with `onyx keys create NAME`, listen "
            "on 127.0.0.1, or say --allow-anonymous where somebody else checks who is asking",
            USAGE,
        )


def _listen(host: str, port: int) -> "socket.socket":
    from onyx.api.server import listen

    try:
        return listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandFailure(
                f"port {port} of {host} is in use: stop who has it, or take another with --port"
            ) from None
        raise CommandFailure(f"cannot listen on port {port} of {host}: {error.strerror}") from None


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _greet(where: str, keys: int, settings: "Settings", as_json: bool) -> None:
    if as_json:
        emit({"url": where, "docs": f"{where}/docs", "home": str(settings.home), "version": __version__})
        return
    say(f"Onyx {__version__} listens on {where}")
    say(f"  try it   {where}/docs")
    say(f"  files    {settings.home}")
    say(f"  callers  {'with an API key' if keys else 'anybody' if settings.allow_anonymous else 'this host only'}")


def run() -> None:
    """Train jobs on this host's devices until SIGTERM or Ctrl-C; then ranks save and their jobs are requeued."""
    settings = read_settings()
    start_logging(settings)

    from onyx.jobs.errors import StoreError
    from onyx.jobs.launch.child import set_process_name
    from onyx.jobs.runner.main import serve
    from onyx.jobs.runner.runner_lock import locked_by, only_one

    set_process_name("onyx-runner")
    try:
        with only_one(settings.run_dir, embedded=False) as alone:
            if not alone:
                other = locked_by(settings.run_dir)
                who = f" (pid {other.pid})" if other else ""
                raise CommandFailure(
                    f"{settings.home} already has a runner on this host{who}: "
                    "set ONYX_EMBEDDED_RUNNER=false where `onyx serve` should start none"
                )
            asyncio.run(serve(settings))
    except StoreError as error:
        raise CommandFailure(f"the job store cannot be used: {error}") from None
    except OSError as error:
        raise CommandFailure(f"{settings.home} cannot be used: {error.strerror}; name another with ONYX_HOME") from None

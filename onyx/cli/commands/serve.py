"""`onyx serve`: the HTTP API in the foreground with a runner beside it; and `onyx runner`: a runner alone."""

import asyncio
import errno
from typing import TYPE_CHECKING, Annotated

import typer

from onyx import __version__
from onyx.cli.operator import read_settings, start_logging, unusable_home, unusable_store, with_store
from onyx.cli.output import USAGE, CommandError, Json, print_json, print_line

if TYPE_CHECKING:
    import socket

    from onyx.jobs.store.store import Store
    from onyx.settings import Settings


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8000,
    allow_anonymous: Annotated[
        bool,
        typer.Option("--allow-anonymous", help="Serve other hosts without API keys: a proxy in front checks callers."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; then running jobs are saved and go back to the queue."""
    settings = read_settings()
    if allow_anonymous:
        settings = settings.model_copy(update={"allow_anonymous": True})
    start_logging(settings)
    if settings.embedded_runner and host in ("127.0.0.1", "localhost", "::1"):
        _start_runner(settings)  # first, because it starts in parallel and takes as long as the service
    keys = _active_keys(settings)
    _check_access(host, keys, settings)
    listener = _listen(host, port)

    from onyx.api.server import Server

    url = _url(host, listener.getsockname()[1])
    server = Server(settings, on_ready=lambda: _print_ready(url, keys, settings, as_json))
    asyncio.run(server.serve_until_stopped(listener))


def _start_runner(settings: "Settings") -> None:
    from onyx.jobs.files import close_directory, private_directory
    from onyx.jobs.runner.autostart import start_runner

    try:
        private_directory(settings.home)
        close_directory(settings.run_dir)
        start_runner(settings)
    except OSError as error:
        raise unusable_home(settings, error) from None


def _active_keys(settings: "Settings") -> int:
    return with_store(settings, _count)


async def _count(store: "Store") -> int:
    return sum(key.revoked_at is None for key in await store.keys.list())


def _check_access(host: str, keys: int, settings: "Settings") -> None:
    """Refuse an address that other hosts can reach while requests need no API key."""
    from onyx.api.http.caller import is_loopback

    if not (keys or settings.allow_anonymous or is_loopback(host)):
        raise CommandError(
            f"{host} can be reached by other hosts and there are no API keys: create one with `onyx keys create NAME`, "
            "listen on 127.0.0.1, or pass --allow-anonymous if a proxy in front checks callers",
            USAGE,
        )


def _listen(host: str, port: int) -> "socket.socket":
    from onyx.api.server import listen

    try:
        return listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(
                f"port {port} of {host} is in use: stop the process that uses it, or choose another with --port"
            ) from None
        raise CommandError(f"cannot listen on port {port} of {host}: {error.strerror}") from None


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _print_ready(url: str, keys: int, settings: "Settings", as_json: bool) -> None:
    if as_json:
        print_json({"url": url, "docs": f"{url}/docs", "home": str(settings.home), "version": __version__})
        return
    callers = "with an API key" if keys else "any, without a key" if settings.allow_anonymous else "this host only"
    print_line(f"Onyx {__version__} listens on {url}")
    print_line(f"  try it   {url}/docs")
    print_line(f"  files    {settings.home}")
    print_line(f"  callers  {callers}")


def run_runner() -> None:
    """Train jobs on this host's devices until SIGTERM or Ctrl-C; then ranks save and their jobs are requeued."""
    settings = read_settings()
    start_logging(settings)

    from onyx.jobs.errors import StoreError
    from onyx.jobs.launch.child import set_process_name
    from onyx.jobs.runner.main import serve
    from onyx.jobs.runner.runner_lock import locked_by, only_one

    set_process_name("onyx-runner")
    try:
        with only_one(settings.run_dir, embedded=False) as locked:
            if not locked:
                owner = locked_by(settings.run_dir)
                pid = f" (pid {owner.pid})" if owner else ""
                raise CommandError(
                    f"{settings.home} already has a runner on this host{pid}: set ONYX_EMBEDDED_RUNNER=false "
                    "for `onyx serve` if it should not start one"
                )
            asyncio.run(serve(settings))
    except StoreError as error:
        raise unusable_store(error) from None
    except OSError as error:
        raise unusable_home(settings, error) from None

"""Starts a service for the demo, with its own home and on a free port, and stops it at the end."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onyx.cli.client import ServiceClient
from onyx.cli.job_summary import TERMINAL
from onyx.cli.output import CommandError

STOP_SECONDS = 60.0
"""How long the service may take to stop: ranks save, the runner ends."""


def demo_home() -> Path:
    """A directory in the virtual environment, so that a second run reuses converted models and measurements.

    Outside of a virtual environment, or where it is not writable, a new temporary directory.
    """
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "onyx-demo"
    return Path(tempfile.mkdtemp(prefix="onyx-demo-"))


@contextmanager
def running(home: Path) -> Iterator[ServiceClient]:
    """A service without open jobs. At the end open jobs are cancelled and all its processes stop."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONYX_")}
    with (home / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "onyx.cli", "serve", "--port", "0", "--json"],
            env=environment | {"ONYX_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C goes to the demo alone, which then stops the service
        )
    try:
        service = ServiceClient(_url(process, home))
        cancel_all(service)
        try:
            yield service
        finally:
            with suppress(CommandError):
                cancel_all(service)
    finally:
        _stop(process)


def cancel_all(service: ServiceClient) -> None:
    """Cancel all open jobs, also those of an earlier demo that was killed."""
    for job in service.get("/training", limit=100)["data"]:
        if job["status"] not in TERMINAL:
            service.post(f"/training/{job['training_id']}/cancel")


def _url(process: "subprocess.Popen[bytes]", home: Path) -> str:
    line = process.stdout.readline() if process.stdout else b""
    if not line:
        raise CommandError(f"the service did not start: see {home / 'serve.log'}")
    return str(json.loads(line)["url"])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()

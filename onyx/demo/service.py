"""The service that the demo starts for itself: its own home, a free port, and gone when the demo is."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onyx.cli.client import Service
from onyx.cli.job_summary import OVER
from onyx.cli.output import CommandFailure

LEAVE_SECONDS = 60.0
"""For ranks to save and everybody to leave."""


def demo_home() -> Path:
    """Kept in the virtual environment, so that a second run converts no model and measures no machine again."""
    kept = Path(sys.prefix) / "onyx-demo"
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return kept
    return Path(tempfile.mkdtemp(prefix="onyx-demo-"))


@contextmanager
def running(home: Path) -> Iterator[Service]:
    """A service with nothing to do; whatever it does at the end is cancelled, and its processes leave."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONYX_")}
    with (home / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "onyx.cli", "serve", "--port", "0", "--json"],
            env=environment | {"ONYX_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # a Ctrl-C is the demo's: it stops the service itself
        )
    try:
        service = Service(_url(process, home))
        cancel_all(service)
        try:
            yield service
        finally:
            with suppress(CommandFailure):
                cancel_all(service)
    finally:
        _stop(process)


def cancel_all(service: Service) -> None:
    """What a run that was interrupted may have left."""
    for job in service.get("/training", limit=100)["data"]:
        if job["status"] not in OVER:
            service.post(f"/training/{job['training_id']}/cancel")


def _url(process: "subprocess.Popen[bytes]", home: Path) -> str:
    line = process.stdout.readline() if process.stdout else b""
    if not line:
        raise CommandFailure(f"the service did not start: see {home / 'serve.log'}")
    return str(json.loads(line)["url"])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()

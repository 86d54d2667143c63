"""The audit log: who did what.

ONYX_HOME/audit.jsonl gets a line of JSON for each request that may change something, downloads a model, or was refused
for lack of rights.
"""

import asyncio
import fcntl
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import RotatingFileHandler
from pathlib import Path

from starlette.requests import Request

from onyx.settings import Settings

logger = logging.getLogger(__name__)

_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOGGED_READS = frozenset({"get_model"})
"""Handlers that only read and are logged all the same."""

_REFUSED = frozenset({401, 403})


class AuditLog:
    """The audit file of one ONYX_HOME. One thread writes it, in the order of the answers.

    A request is answered when its line is written. So no line of an answered request is lost, at most one line per open
    request waits, and a slow disk or a lock of another process delays no other request.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onyx-audit")

    async def append(self, line: str) -> None:
        """Return when the line is written. If it cannot be, that is logged and the request is answered all the same."""
        writing = asyncio.get_running_loop().run_in_executor(self._writer, self._write, line)
        await asyncio.shield(writing)  # the line of a cancelled request is still written

    def _write(self, line: str) -> None:
        try:
            _append(self._settings, line)
        except OSError as error:
            logger.error("the audit log cannot be written: %s", error, extra={"action": "audit_failed"})  # noqa: TRY400


async def record(request: Request, name: str, route: str, status: int) -> None:
    """Append the request's line if it needs one. It has ids, but no bodies and no secrets."""
    context = getattr(request.state, "context", None)
    quiet = request.method in _READING_METHODS and status not in _REFUSED and name not in _LOGGED_READS
    if quiet or context is None:
        return
    caller = getattr(request.state, "caller", None)
    line = {
        "time": time.time(),
        "request_id": request.state.request_id,
        "owner": caller.name if caller else None,
        "key": caller.key_id if caller else None,
        "from": request.client.host if request.client else None,
        "method": request.method,
        "route": route,
        "ids": {param: str(value)[:80] for param, value in request.path_params.items()},
        "made": getattr(request.state, "made", None),
        "status": status,
    }
    await context.audit.append(json.dumps(line) + "\n")


def _append(settings: Settings, line: str) -> None:
    """Append with a single write, so that lines of several processes do not mix."""
    path, most = settings.home / "audit.jsonl", settings.log_bytes
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
        full = 0 < most <= os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if full:
        _rotate(path, settings)


def _rotate(path: Path, settings: Settings) -> None:
    """Rename the full file, unless another process has done so: under a lock, its size is checked again."""
    with (settings.run_dir / "audit.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and path.stat().st_size >= settings.log_bytes:
            handler = RotatingFileHandler(path, backupCount=settings.log_files, delay=True)
            handler.doRollover()
            handler.close()

"""The audit log: who did what. A line of JSON in ONYX_HOME/audit.jsonl for each request that may change something,
takes a model away, or was refused for who sent it."""

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

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_TAKING = frozenset({"get_model"})
"""What only reads, and is still worth a line."""

_REFUSED = frozenset({401, 403})


class AuditLog:
    """The file of one home. One thread writes it, line by line in the order of the answers.

    A request is answered when its line is written. So an answer's line is never lost, there are no more lines waiting
    than requests, and a slow disk or another process's lock keeps no other request waiting.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onyx-audit")

    async def append(self, line: str) -> None:
        """Returns when it is written, or cannot be: that is logged, and costs no request its answer."""
        writing = asyncio.get_running_loop().run_in_executor(self._writer, self._write, line)
        await asyncio.shield(writing)  # a request that is cancelled leaves its line to be written

    def _write(self, line: str) -> None:
        try:
            _append(self._settings, line)
        except OSError as error:
            logger.error("the audit log cannot be written: %s", error, extra={"action": "audit_failed"})  # noqa: TRY400


async def note(request: Request, name: str, route: str, status: int) -> None:
    """Append the line. Ids are noted, bodies and secrets never are."""
    context = getattr(request.state, "context", None)
    quiet = request.method in _READING and status not in _REFUSED and name not in _TAKING
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
        "ids": {name: str(value)[:80] for name, value in request.path_params.items()},
        "made": getattr(request.state, "made", None),
        "status": status,
    }
    await context.audit.append(json.dumps(line) + "\n")


def _append(settings: Settings, line: str) -> None:
    """One write to a file opened for appending: lines of several processes do not mix."""
    path, most = settings.home / "audit.jsonl", settings.log_bytes
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
        full = 0 < most <= os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if full:
        _begin_anew(path, settings)


def _begin_anew(path: Path, settings: Settings) -> None:
    """Number the full file. One process at a time: where another was first, there is none, or one that is not full."""
    with (settings.run_dir / "audit.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and path.stat().st_size >= settings.log_bytes:
            handler = RotatingFileHandler(path, backupCount=settings.log_files, delay=True)
            handler.doRollover()
            handler.close()

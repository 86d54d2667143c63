"""The audit log: who did what. A line of JSON in ONYX_HOME/audit.jsonl for each request that may change something,
takes a model away, or was refused for who sent it."""

import json
import logging
import os
import time

from starlette.requests import Request

logger = logging.getLogger(__name__)

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_TAKING = frozenset({"get_model"})
"""What only reads, and is still worth a line."""

_REFUSED = frozenset({401, 403})


def note(request: Request, name: str, route: str, status: int) -> None:
    """Append the line. Ids are noted, bodies and secrets never are."""
    desk = getattr(request.state, "desk", None)
    quiet = request.method in _READING and status not in _REFUSED and name not in _TAKING
    if quiet or desk is None:
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
    _append(desk.settings.home / "audit.jsonl", json.dumps(line) + "\n")


def _append(path: os.PathLike[str], line: str) -> None:
    """One write to a file opened for appending: lines of several processes do not mix."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.error("the audit log cannot be written: %s", error, extra={"action": "audit_failed"})  # noqa: TRY400

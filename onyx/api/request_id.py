"""A name for every request, so that an answer, a log line and an audit line can be brought together."""

import re
import secrets

from starlette.requests import Request

REQUEST_ID = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def request_id_of(request: Request) -> str:
    """The caller's own, where it is harmless, or a new one."""
    given = request.headers.get(REQUEST_ID, "")
    return given if _SANE.fullmatch(given) else f"req_{secrets.token_hex(12)}"

"""Bodies with bounds: bytes are counted while they come, and JSON may not be nested without end."""

import json
import re
from typing import Any

from starlette.requests import Request

from onyx.api.errors import ApiError, bad

MOST_DEPTH = 64
"""Levels of JSON. What a job can say needs fewer than ten."""

MOST_DIGITS = 400
"""Of one number: more than any float has."""

_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)


MOST_BYTES = 32 * 2**20
"""Of a body that is read at once. Uploads are streamed, and have a limit of their own."""


class BoundedRequest(Request):
    """A request whose body and nesting are bounded."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            chunks, size = [], 0
            async for chunk in self.stream():
                size += len(chunk)
                if size > MOST_BYTES:
                    raise too_large(MOST_BYTES)
                chunks.append(chunk)
            self._body = b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        if nested_deeper(body, MOST_DEPTH):
            raise bad(f"the JSON is nested more than {MOST_DEPTH} levels deep: flatten it", code="too_deep")
        try:
            return json.loads(body, parse_int=_whole)
        except UnicodeDecodeError:
            raise bad("the body is not UTF-8", code="not_utf8") from None


def too_large(most: int) -> ApiError:
    return ApiError(
        413,
        f"the request has more than {most:,} bytes, which is the limit here: send less at once, or upload a file",
        code="too_large",
        headers={"Connection": "close"},
    )


def nested_deeper(text: bytes, most: int) -> bool:
    """Whether brackets outside of strings are ever more than `most` deep."""
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    depth = 0
    for match in _STRUCTURE.finditer(text):
        if match.group(1):
            depth += 1
            if depth > most:
                return True
        elif match.group(2):
            depth -= 1
    return False


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise bad(f"a number has {len(digits)} digits: no number here needs more than {MOST_DIGITS}")
    return int(digits)

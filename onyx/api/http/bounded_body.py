"""Limits on request bodies: their size, the time they take, and the depth and size of their JSON."""

import asyncio
import json
import re
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from onyx.api.http.errors import ApiError, invalid

MOST_BYTES = 32 * 2**20
"""Largest body that is read into memory. Uploads are streamed and have a limit of their own."""

MOST_DEPTH = 64
"""Nesting levels of JSON. A job needs fewer than ten."""

MOST_VALUES = 1_000_000
"""Values in one JSON body: an empty list takes two bytes to send and sixty in memory."""

MOST_DIGITS = 400
"""Digits of one number: more than any float has."""

BASE_SECONDS = 20.0
"""Seconds that every body may take, however short it is."""

LEAST_RATE = 4096
"""Bytes per second that a longer body must reach: each second's worth gives it one more second."""

THREAD_BYTES = 2**16
"""Larger JSON is parsed in a thread, so that the event loop answers other requests meanwhile."""

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""JSON strings, also one that is not closed. Possessive, so that matching takes linear time for any input."""

_DEPTH_CHANGE = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - set(_DEPTH_CHANGE))
_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escaped surrogates, which are valid only in pairs."""


class BoundedRequest(Request):
    """A request whose body is limited in bytes, time and nesting."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self._read()
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        return await asyncio.to_thread(parse, body) if len(body) > THREAD_BYTES else parse(body)

    async def _read(self) -> bytes:
        announced = self.headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and int(announced[:20]) > MOST_BYTES:
            raise too_large(MOST_BYTES)
        chunks: list[bytes] = []
        size, began = 0, asyncio.get_running_loop().time()
        stream = self.stream()
        try:
            while True:
                async with asyncio.timeout_at(began + BASE_SECONDS + size / LEAST_RATE):
                    chunk = await anext(stream, None)
                if chunk is None:
                    return b"".join(chunks)
                size += len(chunk)
                if size > MOST_BYTES:
                    raise too_large(MOST_BYTES)
                chunks.append(chunk)
        except TimeoutError:
            raise too_slow() from None
        except ClientDisconnect:
            raise ApiError(400, "the request ended before its body did: send all of it", code="incomplete") from None


def parse(body: bytes) -> Any:
    """Parse JSON strictly. 422 if it is nested too deeply, has too many values, or a number that JSON does not know."""
    check_structure(body)
    try:
        value = json.loads(body.decode(), parse_int=_parse_int, parse_constant=_refuse_constant)
        if _SURROGATES.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise invalid("the body is not UTF-8, or escapes half of a character", code="not_utf8") from None
    return value


def too_large(most: int) -> ApiError:
    return ApiError(
        413,
        f"the request has more than {most:,} bytes, which is the limit here: send less at once, or upload a file",
        code="too_large",
        headers={"Connection": "close"},
    )


def too_slow() -> ApiError:
    return ApiError(
        408,
        f"the request's body did not come in time: send it within {BASE_SECONDS:.0f} seconds, or more of it per second",
        code="too_slow",
        headers={"Connection": "close"},
    )


def check_structure(text: bytes) -> None:
    """422 if there are too many values or levels: counted in one pass over the text outside of strings."""
    bare = _STRINGS.sub(b"", text)
    if sum(map(bare.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise invalid(f"the JSON has more than {MOST_VALUES:,} values: upload a file instead", code="too_many_values")
    depth = 0
    for bracket in bare.translate(None, _NO_BRACKETS):
        depth += _DEPTH_CHANGE[bracket]
        if depth > MOST_DEPTH:
            raise invalid(f"the JSON is nested more than {MOST_DEPTH} levels deep: flatten it", code="too_deep")


def _parse_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise invalid(f"a number has {len(digits)} digits: no number here needs more than {MOST_DIGITS}")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise invalid(f"{name} is no JSON number: send null, or leave the field out")

"""Bodies with bounds: bytes are counted while they come, slow ones are given up, and JSON has its limits."""

import asyncio
import json
import re
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from onyx.api.http.errors import ApiError, bad

MOST_BYTES = 32 * 2**20
"""Of a body that is read at once. Uploads are streamed, and have a limit of their own."""

MOST_DEPTH = 64
"""Levels of JSON. What a job can say needs fewer than ten."""

MOST_VALUES = 1_000_000
"""Values of JSON: an empty list takes two bytes to send and sixty to keep."""

MOST_DIGITS = 400
"""Of one number: more than any float has."""

PATIENCE = 20.0
"""Seconds that a body may take, however short it is."""

LEAST_RATE = 4096
"""Bytes per second that a longer body must keep up."""

LARGE = 2**16
"""Bytes of JSON from which on it is read in a thread, so that others are answered meanwhile."""

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Closed or not. Nothing is looked at twice, whatever was sent."""

_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_REST = bytes(set(range(256)) - set(_STEPS))
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escapes that mean something only in pairs."""


class BoundedRequest(Request):
    """A request whose body is bounded in bytes, time and nesting."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self._read()
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        return await asyncio.to_thread(parse, body) if len(body) > LARGE else parse(body)

    async def _read(self) -> bytes:
        announced = self.headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and int(announced[:20]) > MOST_BYTES:
            raise too_large(MOST_BYTES)
        chunks: list[bytes] = []
        size, began = 0, asyncio.get_running_loop().time()
        stream = self.stream()
        try:
            while True:
                async with asyncio.timeout_at(began + PATIENCE + size / LEAST_RATE):
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
    """The JSON value, strictly read; 422 for what is nested too deep, too many, or no JSON number."""
    check_structure(body)
    try:
        value = json.loads(body.decode(), parse_int=_whole, parse_constant=_no_number)
        if _HALVES.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise bad("the body is not UTF-8, or escapes half of a character", code="not_utf8") from None
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
        f"the request's body did not come in time: send it within {PATIENCE:.0f} seconds, or more of it per second",
        code="too_slow",
        headers={"Connection": "close"},
    )


def check_structure(text: bytes) -> None:
    """422 when brackets outside of strings are too deep, or separate too many values. Takes one pass."""
    bare = _STRINGS.sub(b"", text)
    if sum(map(bare.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise bad(f"the JSON has more than {MOST_VALUES:,} values: upload a file instead", code="too_many_values")
    depth = 0
    for bracket in bare.translate(None, _REST):
        depth += _STEPS[bracket]
        if depth > MOST_DEPTH:
            raise bad(f"the JSON is nested more than {MOST_DEPTH} levels deep: flatten it", code="too_deep")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise bad(f"a number has {len(digits)} digits: no number here needs more than {MOST_DIGITS}")
    return int(digits)


def _no_number(name: str) -> NoReturn:
    raise bad(f"{name} is no JSON number: send null, or leave the field out")

"""Bodies that are too large, too slow or no valid JSON."""

import asyncio
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onyx.api.http import bounded_body as body
from onyx.api.http.bounded_body import BoundedRequest, check_structure, parse
from onyx.api.http.errors import ApiError

Receive = Callable[[], Awaitable[dict[str, Any]]]


def read(receive: Receive, **headers: str) -> bytes:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return asyncio.run(BoundedRequest({"type": "http", "headers": raw}, receive).body())


def chunks(*parts: bytes, more: bool = False) -> Receive:
    left = list(parts)

    async def receive() -> dict[str, Any]:
        if not left and not more:
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.request", "body": left.pop(0) if left else b"x" * 2**20, "more_body": True}

    return receive


def test_a_client_that_disconnects_is_a_400() -> None:
    async def disconnect() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ApiError) as error:
        read(disconnect, content_length="10")
    assert error.value.status_code == 400


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def refused(text: bytes) -> str:
    with pytest.raises(ApiError) as error:
        parse(text)
    assert error.value.status_code == 422
    return error.value.message


def test_a_body_in_pieces() -> None:
    assert read(chunks(b"ab", b"", b"c")) == b"abc"


def test_an_endless_body_is_refused_at_the_limit() -> None:
    tracemalloc.start()
    with pytest.raises(ApiError) as error:
        read(chunks(more=True))
    assert error.value.status_code == 413
    assert tracemalloc.get_traced_memory()[1] < 3 * body.MOST_BYTES
    tracemalloc.stop()


@pytest.mark.parametrize("length", [str(body.MOST_BYTES + 1), "9" * 300])
def test_a_body_that_announces_too_many_bytes_is_not_read(length: str) -> None:
    with pytest.raises(ApiError) as error:
        read(never, content_length=length)
    assert error.value.status_code == 413
    assert error.value.headers == {"Connection": "close"}


def test_a_body_that_never_arrives_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BASE_SECONDS", 0.05)
    with pytest.raises(ApiError) as error:
        read(never, content_length="10")
    assert error.value.status_code == 408


def test_a_long_body_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BASE_SECONDS", 0.02)
    monkeypatch.setattr(body, "LEAST_RATE", 0.1)  # 10 bytes earn 100 seconds
    parts = [b"x" * 10, b"y" * 10, b""]

    async def slowly() -> dict[str, Any]:
        if len(parts) < 3:
            await asyncio.sleep(0.1)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    assert read(slowly) == b"x" * 10 + b"y" * 10


def test_depth_is_limited_and_brackets_in_strings_do_not_count() -> None:
    deep = body.MOST_DEPTH
    assert parse(b"[" * deep + b"]" * deep) is not None
    assert "nested" in refused(b"[" * (deep + 1) + b"]" * (deep + 1))
    assert "nested" in refused(b'{"a":' * 10_000 + b"1" + b"}" * 10_000)
    assert parse(json.dumps({"text": "[" * 1000 + '\\"{' * 1000}).encode())["text"].startswith("[[")


def test_the_number_of_values_is_limited() -> None:
    assert "values" in refused(b"[" + b"{}," * body.MOST_VALUES + b"1]")
    assert parse(json.dumps([",[" * 100_000] * 10).encode())


@pytest.mark.parametrize(
    "text",
    [b'"' + b'\\"' * 1_000_000 + b"[" * 100, b'"' * 1_000_001, b'"' + b"\\" * 1_000_001, b'"' + b"a" * 4_000_000],
    ids=["open with escaped quotes", "quotes", "backslashes", "open"],
)
def test_no_text_makes_the_check_slow(text: bytes) -> None:
    """In quadratic time the smallest of these would take many minutes, and the test's time limit would end it."""
    check_structure(text)


@pytest.mark.parametrize("text", [b"NaN", b'{"a": [Infinity]}', b"[-Infinity]", b"[1, NaN]"])
def test_constants_that_json_does_not_know_are_refused(text: bytes) -> None:
    assert "no JSON number" in refused(text)


def test_very_long_numbers_and_lone_surrogates_are_refused() -> None:
    assert "digits" in refused(b"[" + b"9" * 5000 + b"]")
    assert "UTF-8" in refused(b'["\\ud800"]')
    assert "UTF-8" in refused(b'["\xff"]')
    assert parse(b'["\\ud83d\\ude00", 1e5]') == ["😀", 1e5]

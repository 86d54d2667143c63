"""What every request passes: admission before the body, request ids, internal errors, route templates."""

import asyncio
import re
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.testclient import TestClient

from onyx.api.app import create_app
from onyx.api.onyx_route import OnyxRoute, request_id_of, route_template
from onyx.settings import Settings
from tests.api.service import AT, make_key


def scope(path: str, **headers: str) -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    where = {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "scheme": "http"}
    peers = {"server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 4000)}
    return {"type": "http", "asgi": {}, "http_version": "1.1", "method": "POST", "headers": raw, **where, **peers}


@pytest.mark.parametrize("path", ["/config", "/training/with-accumulation", "/calculate-batch-size", "/optimize"])
def test_the_caller_is_checked_before_the_body_is_read(here: Settings, path: str) -> None:
    """Otherwise any client could make the service buffer megabytes."""
    make_key(here, "ann")
    app = create_app(here)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    async def story() -> None:
        await app(scope(AT + path, host="localhost"), receive, send)

    asyncio.run(story())
    assert sent[0]["status"] == 401


def test_a_request_counts_once_towards_the_rate_limit(here: Settings) -> None:
    app = create_app(here.model_copy(update={"rate_limit": "2/hour"}))
    with TestClient(app) as client:
        assert [client.post(f"{AT}/config", json={}).status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "<script>", "é"])
def test_every_answer_has_a_safe_request_id(client: TestClient, given: str) -> None:
    headers = {b"X-Request-Id": given.encode()}
    for answer in (client.get(f"{AT}/stats", headers=headers), client.get(f"{AT}/stats/no", headers=headers)):
        assert re.fullmatch(r"req_[0-9a-f]{24}", answer.headers["x-request-id"])
    assert client.get(f"{AT}/stats", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"


def test_an_internal_error_shows_only_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    router = APIRouter(route_class=OnyxRoute)

    @router.get("/broken")
    async def broken() -> None:
        raise KeyError("/srv/secret/path")

    app = FastAPI()
    app.include_router(router)
    answer = TestClient(app).get("/broken", headers={"X-Request-Id": "find-me"})
    assert answer.status_code == 500
    assert "find-me" in answer.json()["detail"]
    assert "secret" not in answer.text
    assert "/srv/secret/path" in caplog.text


INNER = APIRouter()


@INNER.get("/training/{training_id}/events")
def events(request: Request) -> str:
    return route_template(request, "/training/{training_id}/events")


@INNER.get("/files/{path:path}")
def files(request: Request) -> str:
    return route_template(request, "/files/{path}")


ROUTER = APIRouter(prefix="/gradient-accumulation")
ROUTER.include_router(INNER)


@pytest.fixture(scope="module")
def template_client() -> TestClient:
    app, sub = FastAPI(), FastAPI()
    sub.include_router(ROUTER, prefix="/of/{tenant}")
    app.include_router(ROUTER)
    app.include_router(ROUTER, prefix="/api/v1")
    app.mount("/sub", sub)
    return TestClient(app)


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/gradient-accumulation/training/abc/events", "/gradient-accumulation/training/{training_id}/events"),
        (
            "/api/v1/gradient-accumulation/training/v1/events",
            "/api/v1/gradient-accumulation/training/{training_id}/events",
        ),
        (
            "/sub/of/me/gradient-accumulation/training/x/events",
            "/sub/of/{tenant}/gradient-accumulation/training/{training_id}/events",
        ),
        ("/api/v1/gradient-accumulation/files/a/b/c", "/api/v1/gradient-accumulation/files/{path}"),
        ("/gradient-accumulation/training/a%20%7Bb%7D/events", "/gradient-accumulation/training/{training_id}/events"),
    ],
)
def test_the_template_has_every_prefix_and_no_id(template_client: TestClient, path: str, template: str) -> None:
    assert template_client.get(path).json() == template


def request(given: bytes | None) -> Request:
    return Request({"type": "http", "headers": [] if given is None else [(b"x-request-id", given)]})


@pytest.mark.parametrize("given", [b"a", b"req_1", b"0af7651916cd43dd.8448-eb211c80319c", b"x" * 64])
def test_a_safe_request_id_is_kept(given: bytes) -> None:
    assert request_id_of(request(given)) == given.decode()


@pytest.mark.parametrize("given", [None, b"", b"x" * 65, b"a b", b"a\nb", b"a\n", b"<b>", b"caf\xe9", b'"'])
def test_any_other_request_id_is_replaced_by_a_new_one(given: bytes | None) -> None:
    ids = {request_id_of(request(given)) for _ in range(10)}
    assert len(ids) == 10
    assert all(re.fullmatch("req_[0-9a-f]{24}", each) for each in ids)

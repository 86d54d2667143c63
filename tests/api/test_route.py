"""The one way of every request."""

import asyncio
import re
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

from onyx.api.app import create_app
from onyx.api.route import OnyxRoute
from onyx.settings import Settings
from tests.api.service import AT, make_key


def scope(path: str, **headers: str) -> dict[str, Any]:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    where = {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "scheme": "http"}
    peers = {"server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 4000)}
    return {"type": "http", "asgi": {}, "http_version": "1.1", "method": "POST", "headers": raw, **where, **peers}


@pytest.mark.parametrize("path", ["/config", "/training/with-accumulation", "/calculate-batch-size", "/optimize"])
def test_who_is_asking_is_known_before_the_body_is_read(here: Settings, path: str) -> None:
    """A stranger must not make the service hold megabytes."""
    make_key(here, "ann")
    app = create_app(here)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    async def story() -> None:
        await app(scope(AT + path, host="localhost"), receive, send)
        await (await app.state.opening.desk()).home.close()  # no lifespan does it

    asyncio.run(story())
    assert sent[0]["status"] == 401


def test_a_request_is_counted_once(here: Settings) -> None:
    app = create_app(here.model_copy(update={"rate_limit": "2/hour"}))
    with TestClient(app) as client:
        assert [client.post(f"{AT}/config", json={}).status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "<script>", "é"])
def test_every_answer_has_a_harmless_request_id(client: TestClient, given: str) -> None:
    headers = {b"X-Request-Id": given.encode()}
    for answer in (client.get(f"{AT}/stats", headers=headers), client.get(f"{AT}/stats/no", headers=headers)):
        assert re.fullmatch(r"req_[0-9a-f]{24}", answer.headers["x-request-id"])
    assert client.get(f"{AT}/stats", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"


def test_a_defect_is_a_number_for_the_operator_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
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

"""The router in another FastAPI app: including it is enough, and nothing else of the app changes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException
from fastapi.testclient import TestClient
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response

from onyx.api.router import make_router
from onyx.settings import Settings
from tests.acceptance.api_server import runners_of
from tests.api.service import database_threads, still_alive
from tests.waiting import wait_for

CONFIG = {"accumulation_steps": 4}
PREFIX = "/gradient-accumulation"


def idle(home: Path) -> Settings:
    """Settings without a runner: these tests are about routing."""
    return Settings(home=home, embedded_runner=False)


@pytest.fixture
def router(tmp_path: Path) -> APIRouter:
    return make_router(idle(tmp_path))


def stored(client: TestClient, prefix: str) -> None:
    """Store a config and find it again."""
    made = client.post(f"{prefix}{PREFIX}/config", json=CONFIG)
    assert made.status_code == 200, made.text
    found = client.get(f"{prefix}{PREFIX}/config/{made.json()['training_id']}")
    assert found.status_code == 200
    assert found.json()["config"]["accumulation_steps"] == 4


def test_a_bare_app_with_its_lifespan(router: APIRouter) -> None:
    app = FastAPI()
    app.include_router(router, prefix="/api/v1")
    with TestClient(app) as client:
        stored(client, "/api/v1")


def test_a_bare_app_without_its_lifespan(router: APIRouter) -> None:
    app = FastAPI()
    app.include_router(router, prefix="/api/v1")
    before = database_threads()
    stored(TestClient(app), "/api/v1")  # a new event loop for each request
    assert still_alive(database_threads() - before) == [], "each loop has closed what it opened"


def test_the_documented_import_reads_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))
    monkeypatch.setenv("ONYX_EMBEDDED_RUNNER", "false")
    from onyx.server.features.ads.gradient_accumulation_api import router

    app = FastAPI()
    app.include_router(router, prefix="/api/v1")
    with TestClient(app) as client:
        stored(client, "/api/v1")
    assert (tmp_path / "onyx.db").exists()


def test_included_twice(router: APIRouter) -> None:
    app = FastAPI()
    app.include_router(router, prefix="/one")
    app.include_router(router, prefix="/two")
    with TestClient(app) as client:
        stored(client, "/one")
        stored(client, "/two")


def test_mounted_as_a_sub_app(router: APIRouter) -> None:
    inner = FastAPI()
    inner.include_router(router)
    app = FastAPI()
    app.mount("/inner", inner)
    with TestClient(app) as client:
        stored(client, "/inner")


def test_inside_of_another_router(router: APIRouter) -> None:
    outer = APIRouter(prefix="/deep")
    outer.include_router(router, prefix="/deeper")
    app = FastAPI()
    app.include_router(outer, prefix="/api")
    with TestClient(app) as client:
        stored(client, "/api/deep/deeper")


async def check_badge(badge: Annotated[str | None, Header()] = None) -> None:
    if badge != "ours":
        raise HTTPException(418, "no badge")


class HostMiddleware(BaseHTTPMiddleware):
    """A middleware of the embedding app."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-stamp"] = "host"
        return response


def test_with_auth_and_middleware_of_the_embedding_app(router: APIRouter) -> None:
    app = FastAPI()
    app.add_middleware(HostMiddleware)
    app.include_router(router, prefix="/api", dependencies=[Depends(check_badge)])
    with TestClient(app) as client:
        refused = client.post(f"/api{PREFIX}/config", json=CONFIG)
        assert refused.status_code == 418
        assert refused.json() == {"detail": "no badge"}
        client.headers["badge"] = "ours"
        stored(client, "/api")
        assert client.get(f"/api{PREFIX}/health").headers["x-stamp"] == "host"


def test_nothing_of_the_app_changes(router: APIRouter) -> None:
    app = FastAPI()

    @app.get("/own")
    def own(number: int) -> int:
        return number

    before = (list(app.user_middleware), dict(app.exception_handlers))
    app.include_router(router)
    assert (list(app.user_middleware), dict(app.exception_handlers)) == before
    with TestClient(app) as client:
        assert isinstance(client.get("/own?number=x").json()["detail"], list)  # FastAPI's own shape
        assert isinstance(client.post(f"{PREFIX}/config", json={"accumulation_steps": 0}).json()["detail"], str)
        assert "x-request-id" not in client.get("/own?number=1").headers


def test_two_homes_in_one_app(tmp_path: Path) -> None:
    app = FastAPI()
    for name in ("a", "b"):
        app.include_router(make_router(idle(tmp_path / name)), prefix=f"/{name}")
    with TestClient(app) as client:
        made = client.post(f"/a{PREFIX}/config", json=CONFIG).json()
        assert client.get(f"/a{PREFIX}/config/{made['training_id']}").status_code == 200
        assert client.get(f"/b{PREFIX}/config/{made['training_id']}").status_code == 404


def test_an_asynchronous_client_in_this_process(router: APIRouter) -> None:
    app = FastAPI()
    app.include_router(router)
    before = database_threads()

    async def story() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://anything") as client:
            made = await client.post(f"{PREFIX}/config", json=CONFIG)
            assert made.status_code == 200

    asyncio.run(story())
    assert still_alive(database_threads() - before) == [], "closed with the event loop, though no lifespan ran"


@pytest.fixture
def runners(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for pid in runners_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def test_two_apps_of_one_home_share_a_runner(runners: Path) -> None:
    settings = Settings(home=runners, warm_start=False)
    for _ in range(2):
        app = FastAPI()
        app.include_router(make_router(settings))
        with TestClient(app) as client:
            assert client.get(f"{PREFIX}/health").status_code == 200
            wait_for(lambda: len(runners_of(runners)) == 1, "one runner")


def test_only_the_accumulator_api_imports_torch() -> None:
    code = (
        "import sys\n"
        "from onyx.server.features.ads import gradient_accumulation_api as api\n"
        "assert 'torch' not in sys.modules\n"
        "api.GradientAccumulationAPI().cleanup_all()\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

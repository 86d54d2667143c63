import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.testclient import TestClient

from onyx.api.template import route_template

OWN = APIRouter()


@OWN.get("/training/{training_id}/events")
def events(request: Request) -> str:
    return route_template(request, "/training/{training_id}/events")


@OWN.get("/files/{path:path}")
def files(request: Request) -> str:
    return route_template(request, "/files/{path}")


ROUTER = APIRouter(prefix="/gradient-accumulation")
ROUTER.include_router(OWN)


@pytest.fixture(scope="module")
def client() -> TestClient:
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
def test_every_prefix_is_in_the_template_and_no_id(client: TestClient, path: str, template: str) -> None:
    assert client.get(path).json() == template

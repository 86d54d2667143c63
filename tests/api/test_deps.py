"""Every route with an id is closed to whoever is not its owner."""

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.service import AT, make_job, make_key, service

BODIES: dict[str, Any] = {"put": {"accumulation_steps": 2}}


def routes_with_ids(client: TestClient) -> list[tuple[str, str]]:
    paths = client.get("/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() if "{" in path for method in methods]


def ask(client: TestClient, method: str, path: str, identifier: str, headers: dict[str, str]) -> int:
    path = re.sub(r"\{\w+\}", lambda _: identifier, path)
    return client.request(method, path, headers=headers, json=BODIES.get(method)).status_code


def test_another_owners_job_or_config_is_404_on_every_route(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    _, bob = make_key(here, "bob")
    with service(here) as client:
        job = make_job(client, ann)
        config = client.post(f"{AT}/config", json={}, headers=ann).json()["training_id"]
        routes = routes_with_ids(client)
        assert len(routes) >= 12
        for method, path in routes:
            # Cleaning up what is unknown is documented to succeed; what is somebody else's stays as it is.
            expected = 200 if "/cleanup/" in path else 404
            for theirs in (job, config):
                assert ask(client, method, path, theirs, bob) == expected, (method, path)
        assert client.get(f"{AT}/training/{job}", headers=ann).json()["status"] == "validating"
        assert client.get(f"{AT}/config/{config}", headers=ann).status_code == 200


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a%00b", "accumulation_1_0123456789%0a", "'; DROP TABLE job; --"]
)
def test_an_id_that_nobody_made_is_never_looked_up(client: TestClient, name: str) -> None:
    for method, path in routes_with_ids(client):
        status = ask(client, method, path, name, {})
        refused = (404, 405) if path.startswith(AT) else (400, 404, 405)
        assert status in refused or ("/cleanup" in path and status == 200), (method, path, status)


def test_an_endless_id_is_refused(client: TestClient) -> None:
    for method, path in routes_with_ids(client):
        expected = {422} if path.startswith(AT) else {400, 404}  # OpenAI's clients know no 422
        assert ask(client, method, path, "x" * 1000, {}) in expected, (method, path)

"""Every route with an id answers its owner only."""

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


def send(client: TestClient, method: str, path: str, identifier: str, headers: dict[str, str]) -> int:
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
            # Cleaning up an unknown id is documented to succeed; another owner's things stay as they are.
            expected = 200 if "/cleanup/" in path else 404
            for theirs in (job, config):
                assert send(client, method, path, theirs, bob) == expected, (method, path)
        assert client.get(f"{AT}/training/{job}", headers=ann).json()["status"] == "validating"
        assert client.get(f"{AT}/config/{config}", headers=ann).status_code == 200


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a%00b", "accumulation_1_0123456789%0a", "'; DROP TABLE job; --"]
)
def test_a_malformed_id_is_refused_on_every_route(client: TestClient, name: str) -> None:
    for method, path in routes_with_ids(client):
        status = send(client, method, path, name, {})
        refused = (404, 405) if path.startswith(AT) else (400, 404, 405)
        assert status in refused or ("/cleanup" in path and status == 200), (method, path, status)


def test_a_very_long_id_is_refused(client: TestClient) -> None:
    for method, path in routes_with_ids(client):
        expected = {422} if path.startswith(AT) else {400, 404}  # OpenAI's API has no 422
        assert send(client, method, path, "x" * 1000, {}) in expected, (method, path)

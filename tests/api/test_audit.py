import json
import re
import stat
from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.service import AT, make_job, make_key, service


def lines(at: Settings) -> list[dict[str, Any]]:
    path = at.home / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_who_did_what(here: Settings) -> None:
    key_id, ann = make_key(here, "ann")
    with service(here) as client:
        job = make_job(client, ann)
        client.get(f"{AT}/training/{job}", headers=ann)
        client.get(f"{AT}/training/{job}/model", headers=ann)
        client.post(f"{AT}/training/{job}/cancel", headers=ann | {"X-Request-Id": "mine"})
        client.get(f"{AT}/stats", headers={"Authorization": "Bearer wrong-secret"})
    made, taken, cancelled, refused = lines(here)
    assert (made["owner"], made["key"], made["made"], made["status"]) == ("ann", key_id, job, 202)
    assert (taken["route"], taken["status"]) == (f"{AT}/training/{{training_id}}/model", 400)
    assert (cancelled["ids"], cancelled["request_id"]) == ({"training_id": job}, "mine")
    assert (refused["owner"], refused["method"], refused["status"]) == (None, "GET", 401)
    assert all(line["from"] == "testclient" and line["time"] > 1e9 for line in lines(here))


def test_every_change_has_a_line_and_no_look_has_one(client: TestClient, here: Settings) -> None:
    paths: dict[str, dict[str, Any]] = client.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method in methods:
            before = len(lines(here))
            client.request(method, re.sub(r"\{\w+\}", "accumulation_1_0123456789", path))
            changes = method not in ("get", "head") or path.endswith("/model")
            assert len(lines(here)) - before == changes, (method, path)


def test_lines_are_short_private_and_without_secrets(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    secret = ann["Authorization"].split()[1]
    with service(here) as client:
        client.delete(f"{AT}/training/{'x' * 5000}?token={secret}", headers=ann | {"X-Request-Id": "r" * 5000})
        client.post(f"{AT}/config", json={"secret": secret}, headers=ann)
    text = (here.home / "audit.jsonl").read_text()
    assert secret not in text
    assert all(len(line) < 1000 for line in text.splitlines())
    assert stat.S_IMODE((here.home / "audit.jsonl").stat().st_mode) == 0o600


def test_a_full_disk_costs_the_line_and_not_the_request(
    client: TestClient, here: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    (here.home / "audit.jsonl").mkdir()
    assert client.post(f"{AT}/config", json={}).status_code == 200
    assert "audit log cannot be written" in caplog.text

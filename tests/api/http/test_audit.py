"""The audit log: which requests have a line, and that no line is lost."""

import asyncio
import fcntl
import json
import re
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from onyx.api.app import create_app
from onyx.api.http.audit import AuditLog
from onyx.settings import Settings
from tests.api.service import AT, make_job, make_key, service
from tests.waiting import wait_for


def lines(at: Settings) -> list[dict[str, Any]]:
    path = at.home / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_line_names_owner_key_route_and_ids(here: Settings) -> None:
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


def test_every_change_has_a_line_and_reads_have_none(client: TestClient, here: Settings) -> None:
    paths: dict[str, dict[str, Any]] = client.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method in methods:
            before = len(lines(here))
            client.request(method, re.sub(r"\{\w+\}", "accumulation_1_0123456789", path))
            changes = method not in ("get", "head") or path.endswith("/model")
            assert len(lines(here)) - before == changes, (method, path)


def test_lines_are_short_and_without_secrets(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    secret = ann["Authorization"].split()[1]
    with service(here) as client:
        client.delete(f"{AT}/training/{'x' * 5000}?token={secret}", headers=ann | {"X-Request-Id": "r" * 5000})
        client.post(f"{AT}/config", json={"secret": secret}, headers=ann)
    text = (here.home / "audit.jsonl").read_text()
    assert secret not in text
    assert all(len(line) < 1000 for line in text.splitlines())
    assert stat.S_IMODE((here.home / "audit.jsonl").stat().st_mode) == 0o600


def test_a_request_is_answered_when_its_line_cannot_be_written(
    client: TestClient, here: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    (here.home / "audit.jsonl").mkdir()
    assert client.post(f"{AT}/config", json={}).status_code == 200
    assert "audit log cannot be written" in caplog.text


def test_a_full_log_is_rotated_and_the_oldest_file_deleted(here: Settings) -> None:
    with service(here.model_copy(update={"log_bytes": 1000, "log_files": 2})) as client:
        for number in range(40):
            client.post(f"{AT}/config", json={}, headers={"X-Request-Id": f"r-{number}"})
    files = [here.home / f"audit.jsonl{end}" for end in (".2", ".1", "")]
    assert sorted(here.home.glob("audit.jsonl*")) == sorted(path for path in files if path.exists())
    assert all(path.stat().st_size < 1500 and stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files[:2])
    kept = [json.loads(line)["request_id"] for path in files if path.exists() for line in path.read_text().splitlines()]
    assert kept == [f"r-{number}" for number in range(40 - len(kept), 40)], "in order, and none lost but the oldest"
    assert len(kept) < 40


def test_a_log_without_a_size_limit_is_not_rotated(here: Settings) -> None:
    with service(here.model_copy(update={"log_bytes": 0})) as client:
        for _ in range(10):
            client.post(f"{AT}/config", json={})
    assert len(lines(here)) == 10
    assert not list(here.home.glob("audit.jsonl.*"))


WRITER = """
import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from starlette.requests import Request
from onyx.api.http import audit
from onyx.settings import Settings

async def write():
    context = SimpleNamespace(audit=audit.AuditLog(Settings(home=Path(sys.argv[1]), log_bytes=4000, log_files=100)))
    for number in range(200):
        request = Request({"type": "http", "method": "POST", "headers": [], "path_params": {}, "client": None})
        request.state.context, request.state.request_id = context, f"{sys.argv[2]}-{number}"
        await audit.record(request, "name", "/route", 200)

asyncio.run(write())
"""


def test_several_processes_lose_no_line(here: Settings) -> None:
    here.run_dir.mkdir(parents=True)
    command = [sys.executable, "-c", WRITER, str(here.home)]
    writers = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [writer.wait(600) for writer in writers] == [0, 0, 0]
    files = list(here.home.glob("audit.jsonl*"))
    found = [json.loads(line)["request_id"] for path in files for line in path.read_text().splitlines()]
    assert sorted(found) == sorted(f"{writer}-{number}" for writer in range(3) for number in range(200))
    assert len(files) > 10
    assert all(path.stat().st_size < 6000 for path in files)


@contextmanager
def locked(at: Settings) -> Iterator[threading.Event]:
    """Another thread holds the log's lock until the event is set, or for 600 seconds."""
    at.run_dir.mkdir(parents=True, exist_ok=True)
    held, release = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with (at.run_dir / "audit.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held.set()
            release.wait(600)

    holder = threading.Thread(target=hold_lock)
    holder.start()
    held.wait()
    try:
        yield release
    finally:
        release.set()
        holder.join()


@asynccontextmanager
async def running_app(at: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(at)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        yield client


def post_config(client: httpx.AsyncClient, name: str) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(client.post(f"{AT}/config", json={}, headers={"X-Request-Id": name}))


def request_ids(at: Settings) -> list[str]:
    files = sorted(at.home.glob("audit.jsonl*"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line)["request_id"] for path in files for line in path.read_text().splitlines()]


def test_a_blocked_log_delays_no_other_request(here: Settings) -> None:
    here = here.model_copy(update={"log_bytes": 1, "log_files": 9})  # each line fills the log, which takes the lock

    async def story() -> None:
        async with running_app(here) as client:
            with locked(here) as release:
                first = post_config(client, "first")
                await asyncio.to_thread(wait_for, lambda: bool(request_ids(here)), "the first line")
                second = post_config(client, "second")
                assert (await client.get(f"{AT}/health")).status_code == 200
                assert (await client.get("/healthz")).status_code == 200
                assert not first.done()
                assert not second.done(), "a request is answered when its line is written"
                release.set()
            assert [(await each).status_code for each in (first, second)] == [200, 200]

    asyncio.run(story())
    assert request_ids(here) == ["first", "second"]


def test_the_line_of_a_cancelled_request_is_written(here: Settings) -> None:
    async def story() -> None:
        log = AuditLog(here.model_copy(update={"log_bytes": 1, "log_files": 9}))
        with locked(here):
            writing = [asyncio.create_task(log.append(json.dumps({"request_id": name}) + "\n")) for name in "abc"]
            await asyncio.to_thread(wait_for, lambda: bool(request_ids(here)), "the first line")
            for each in writing[1:]:
                each.cancel()
            await asyncio.wait(writing[1:])
        await writing[0]
        await log.append(json.dumps({"request_id": "d"}) + "\n")

    asyncio.run(story())
    assert request_ids(here) == ["a", "b", "c", "d"]


def test_lines_are_in_the_order_of_the_answers(here: Settings) -> None:
    answered: list[str] = []

    async def story() -> None:
        async with running_app(here) as client:

            async def send(name: str) -> None:
                await post_config(client, name)
                answered.append(name)
                assert name in request_ids(here)

            await asyncio.gather(*(send(f"r-{number}") for number in range(50)))

    asyncio.run(story())
    assert request_ids(here) == answered

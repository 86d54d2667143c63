"""Admission with and without keys, secrets that stay hidden, and a context that is closed in time."""

import asyncio
import logging
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from onyx.api import app_context
from onyx.jobs.store.keys import Scope
from onyx.settings import Settings
from tests.api.service import AT, at_home, database_threads, make_job, make_key, service, settings, still_alive


def test_once_there_is_a_key_every_route_needs_one(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    with service(here) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, methods in paths.items():
            for method in methods:
                answer = client.request(method, path.replace("{training_id}", "x"))
                if path in ("/healthz", "/readyz"):
                    assert answer.status_code in (200, 503)
                    continue
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get(f"{AT}/health", headers=ann).status_code == 200


def test_a_revoked_key_stops_working_also_if_it_was_the_last(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_context, "CACHE_SECONDS", 0.0)
    key_id, ann = make_key(here, "ann")
    with service(here) as client:
        assert client.get(f"{AT}/stats", headers=ann).status_code == 200
        assert at_home(here, lambda home: home.store.keys.revoke(key_id))
        assert client.get(f"{AT}/stats", headers=ann).status_code == 401
        assert client.get(f"{AT}/stats").status_code == 401


def test_keys_are_read_again_within_two_seconds() -> None:
    assert app_context.CACHE_SECONDS <= 2.0


def test_a_key_is_in_no_file_log_or_answer(here: Settings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    _, ann = make_key(here, "ann", Scope.ADMIN)
    secret = ann["Authorization"].split()[1]
    answers = []
    with service(here) as client:
        make_job(client, ann)
        paths = ("/training", "/stats", "/health", "/config/nothing")
        answers += [client.get(f"{AT}{path}", headers=ann).text for path in paths]
        answers.append(client.get("/metrics", headers=ann).text)
        answers.append(client.get(f"{AT}/stats", headers={"Authorization": f"Bearer {secret}x"}).text)
    files = [path.read_bytes() for path in here.home.rglob("*") if path.is_file()]
    assert files
    assert secret not in caplog.text + "".join(answers)
    assert not any(secret.encode() in content for content in files)


def test_a_user_sees_its_own_jobs_and_an_admin_all(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    _, bob = make_key(here, "bob")
    _, root = make_key(here, "root", Scope.ADMIN)
    with service(here) as client:
        job = make_job(client, ann, user_id="bob")
        for who, seen in ((ann, [job]), (bob, []), (root, [job])):
            page = client.get(f"{AT}/training", headers=who).json()
            assert [each["training_id"] for each in page["data"]] == seen
            assert client.get(f"{AT}/stats", headers=who).json()["total_sessions"] == len(seen)
        assert client.get(f"{AT}/training?after={job}", headers=bob).status_code == 422


def test_an_unreachable_store_is_503_and_its_password_stays_hidden(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable = settings(tmp_path, database_url="postgresql://onyx:hunter2@127.0.0.1:1/onyx")
    with service(unreachable) as client:
        answer = client.get(f"{AT}/stats")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
    assert "hunter2" not in answer.text + caplog.text


def test_only_its_user_can_read_the_home(client: TestClient, here: Settings) -> None:
    client.post(f"{AT}/config", json={})
    modes = {path.name: path.stat().st_mode & 0o777 for path in (here.home, *here.home.iterdir())}
    assert modes[here.home.name] == modes["run"] == 0o700
    assert {name: mode for name, mode in modes.items() if name.startswith(("onyx.db", "audit"))}
    assert all(mode == 0o600 for name, mode in modes.items() if name.startswith(("onyx.db", "audit")))


def test_a_context_that_cannot_start_its_runner_leaves_no_connection_open(tmp_path: Path) -> None:
    at = settings(tmp_path, embedded_runner=True)
    at.run_dir.mkdir(parents=True)
    (at.run_dir / "clients").touch()  # a file, so that no client can be registered in it
    before = database_threads()

    async def story() -> None:
        provider = app_context.ContextProvider(at)
        for _ in range(2):
            with pytest.raises(OSError, match="clients"):
                await provider.context()

    asyncio.run(story())
    assert still_alive(database_threads() - before) == []

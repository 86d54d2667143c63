"""Probes: alive in any case, ready with a store and a runner."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from onyx.api import prometheus
from onyx.jobs.disk_quota import free_bytes
from onyx.jobs.home import Home
from onyx.settings import Settings
from tests.api.service import at_home, make_key, service
from tests.jobs.store_harness import holder


def test_ready_once_a_runner_has_reached_the_store(here: Settings) -> None:
    with service(here) as client:
        waiting = client.get("/readyz")
        assert (waiting.status_code, waiting.json()) == (
            503,
            {"ready": False, "store": True, "migrated": True, "runner": False},
        )
        assert client.get("/healthz").json() == {"status": "alive"}

        async def register(home: Home) -> str:
            return await home.store.runners.register(holder("elsewhere"))

        at_home(here, register)
        assert (client.get("/readyz").status_code, client.get("/readyz").json()["runner"]) == (200, True)


def test_disk_access_runs_in_a_thread(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def recording(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def wrapped(argument: Any) -> Any:
            with pytest.raises(RuntimeError):  # no event loop runs in this thread
                asyncio.get_running_loop()
            calls.append(name)
            return function(argument)

        return wrapped

    monkeypatch.setattr(Home, "runner_is_alive", recording("lock", Home.runner_is_alive))
    monkeypatch.setattr(prometheus, "free_bytes", recording("disk", free_bytes))
    with service(here) as client:
        assert client.get("/readyz").status_code == 503
        assert client.get("/metrics").status_code == 200
    assert calls == ["lock", "disk"]


def test_probes_need_no_key_but_metrics_do(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    with service(here) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        assert client.get("/metrics").status_code == 401
        numbers = client.get("/metrics", headers=ann)
    assert numbers.headers["content-type"].startswith("text/plain")
    assert "onyx_http_requests_total" in numbers.text

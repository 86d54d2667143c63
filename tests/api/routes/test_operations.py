"""Probes: alive without anything, ready with a store and a runner."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from onyx.api import prometheus as gauges
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

        async def arrive(home: Home) -> str:
            return await home.store.runners.register(holder("elsewhere"))

        at_home(here, arrive)
        assert (client.get("/readyz").status_code, client.get("/readyz").json()["runner"]) == (200, True)


def test_a_slow_disk_keeps_no_other_request_waiting(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def looking(name: str, look: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def wrapped(place: Any) -> Any:
            with pytest.raises(RuntimeError):  # in a thread, not on the event loop
                asyncio.get_running_loop()
            looks.append(name)
            return look(place)

        return wrapped

    monkeypatch.setattr(Home, "runner_is_alive", looking("lock", Home.runner_is_alive))
    monkeypatch.setattr(gauges, "free_bytes", looking("disk", free_bytes))
    with service(here) as client:
        assert client.get("/readyz").status_code == 503
        assert client.get("/metrics").status_code == 200
    assert looks == ["lock", "disk"]


def test_probes_need_no_key_and_numbers_do(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    with service(here) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        assert client.get("/metrics").status_code == 401
        numbers = client.get("/metrics", headers=ann)
    assert numbers.headers["content-type"].startswith("text/plain")
    assert "onyx_http_requests_total" in numbers.text

"""Statistics are of real jobs and of the caller's own."""

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.api import app_context
from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.routes.stats import MOST_SESSIONS, efficiency, running_jobs
from onyx.jobs.home import Home
from onyx.jobs.models import JobProgress
from onyx.settings import Settings
from onyx.training.contract.attempt import Event
from tests.api.lives import start
from tests.api.service import AT, make_job, make_key, service


def test_the_numbers_of_one_job(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"update": 1, "loss": 2.0, "gradient_norm": 0.5, "seconds": 0.25, "peak_bytes": 2 * 10**9}
    told = Event(line=1, time=1.0, kind="metrics", message="update 1", data=data)
    monkeypatch.setattr(app_context, "STATS_SECONDS", 0.0)
    with service(here) as client:
        job = make_job(client)
        assert client.get(f"{AT}/stats/{job}").json()["gradient_norms"] == []
        start(here, told, progress=JobProgress(update=1, loss=2.0, samples=8))
        stats = client.get(f"{AT}/stats/{job}").json()
    assert (stats["accumulation_steps"], stats["current_step"], stats["total_samples"]) == (2, 1, 8)
    assert (stats["gradient_norms"], stats["accumulation_times"], stats["memory_usage"]) == ([0.5], [0.25], [2.0])


def test_what_was_read_for_one_caller_is_not_told_to_another(here: Settings) -> None:
    """Answers are kept for a moment, whoever asked first."""
    _, ann = make_key(here, "ann")
    _, bob = make_key(here, "bob")
    with service(here) as client:
        job = make_job(client, ann)
        assert client.get(f"{AT}/stats/{job}", headers=ann).status_code == 200
        assert client.get(f"{AT}/stats/{job}", headers=bob).status_code == 404


def test_sessions_are_few_and_all_are_counted(client: TestClient) -> None:
    jobs = [make_job(client) for _ in range(MOST_SESSIONS + 1)]
    answer = client.get(f"{AT}/stats").json()
    assert answer["total_sessions"] == len(jobs)
    assert [each["training_id"] for each in answer["accumulation_stats"]] == jobs[:0:-1]


@pytest.mark.parametrize(("size", "batch", "steps"), [("small", 8, 4), ("medium", 4, 8), ("xlarge", 1, 32)])
def test_a_rule_of_thumb_reaches_the_target(client: TestClient, size: str, batch: int, steps: int) -> None:
    advice = client.get(f"{AT}/performance/recommendations", params={"model_size": size}).json()["optimal_settings"]
    assert (advice["batch_size_per_gpu"], advice["accumulation_steps"]) == (batch, steps)
    assert advice["effective_batch_size"] == 32


def test_health_names_what_is_there(client: TestClient) -> None:
    health = client.get(f"{AT}/health").json()
    assert (health["status"], health["pytorch_available"]) == ("healthy", True)
    assert health["gpu_count"] == len(health["available_gpus"]) == len(health["gpu_info"])


ADMIN = Caller(name="root", sees=None)


def update(**data: Any) -> Event:
    return Event(line=1, time=1.0, kind="metrics", message="update 4", data={"update": 4, "loss": 1.0} | data)


def shares(at: Settings, caller: Caller = ADMIN) -> list[float]:
    async def story() -> list[float]:
        home = await Home.open(at)
        try:
            context = AppContext(home)
            return list((await efficiency(context, await running_jobs(context, caller))).values())
        finally:
            await home.close()

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("told", "share"),
    [
        (update(trained_tokens=600, micro_batches=2), [0.75]),  # 150 tokens an update, in two with room for 100
        (update(trained_tokens=900, micro_batches=2), [1.0]),  # never more than full
        (update(trained_tokens=600, micro_batches=0), []),
        (update(), []),
        (Event(line=1, time=1.0, kind="message", message="training begins"), []),
    ],
)
def test_real_tokens_over_the_room_for_them(here: Settings, told: Event, share: list[float]) -> None:
    with service(here) as client:
        make_job(client)
    start(here, told)
    assert shares(here) == share


def test_only_jobs_that_run_and_are_the_callers_count(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    with service(here) as client:
        make_job(client, ann)
        assert shares(here) == []
        start(here, update(trained_tokens=600, micro_batches=2))
        make_job(client, ann)
    assert len(shares(here)) == len(shares(here, Caller(name="ann", sees="ann"))) == 1
    assert shares(here, Caller(name="bob", sees="bob")) == []

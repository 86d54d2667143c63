"""Statistics of the caller's jobs, rules of thumb, and how full micro-batches are."""

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
from tests.api.job_states import start_job
from tests.api.service import AT, make_job, make_key, service


def test_the_numbers_of_one_job(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"update": 1, "loss": 2.0, "gradient_norm": 0.5, "seconds": 0.25, "peak_bytes": 2 * 10**9}
    event = Event(line=1, time=1.0, kind="metrics", message="update 1", data=data)
    monkeypatch.setattr(app_context, "STATS_SECONDS", 0.0)
    with service(here) as client:
        job = make_job(client)
        assert client.get(f"{AT}/stats/{job}").json()["gradient_norms"] == []
        start_job(here, event, progress=JobProgress(update=1, loss=2.0, samples=8))
        stats = client.get(f"{AT}/stats/{job}").json()
    assert (stats["accumulation_steps"], stats["current_step"], stats["total_samples"]) == (2, 1, 8)
    assert (stats["gradient_norms"], stats["accumulation_times"], stats["memory_usage"]) == ([0.5], [0.25], [2.0])


def test_cached_statistics_are_shown_to_their_owner_only(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    _, bob = make_key(here, "bob")
    with service(here) as client:
        job = make_job(client, ann)
        assert client.get(f"{AT}/stats/{job}", headers=ann).status_code == 200
        assert client.get(f"{AT}/stats/{job}", headers=bob).status_code == 404


def test_only_the_newest_sessions_are_listed_and_all_are_counted(client: TestClient) -> None:
    jobs = [make_job(client) for _ in range(MOST_SESSIONS + 1)]
    answer = client.get(f"{AT}/stats").json()
    assert answer["total_sessions"] == len(jobs)
    assert [each["training_id"] for each in answer["accumulation_stats"]] == jobs[:0:-1]


@pytest.mark.parametrize(("size", "batch", "steps"), [("small", 8, 4), ("medium", 4, 8), ("xlarge", 1, 32)])
def test_a_rule_of_thumb_reaches_the_target(client: TestClient, size: str, batch: int, steps: int) -> None:
    advice = client.get(f"{AT}/performance/recommendations", params={"model_size": size}).json()["optimal_settings"]
    assert (advice["batch_size_per_gpu"], advice["accumulation_steps"]) == (batch, steps)
    assert advice["effective_batch_size"] == 32


def test_health_lists_the_gpus(client: TestClient) -> None:
    health = client.get(f"{AT}/health").json()
    assert (health["status"], health["pytorch_available"]) == ("healthy", True)
    assert health["gpu_count"] == len(health["available_gpus"]) == len(health["gpu_info"])


ADMIN = Caller(name="root", sees=None)


def update(**data: Any) -> Event:
    return Event(line=1, time=1.0, kind="metrics", message="update 4", data={"update": 4, "loss": 1.0} | data)


def ratios(at: Settings, caller: Caller = ADMIN) -> list[float]:
    async def story() -> list[float]:
        home = await Home.open(at)
        try:
            context = AppContext(home)
            return list((await efficiency(context, await running_jobs(context, caller))).values())
        finally:
            await home.close()

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("event", "ratio"),
    [
        (
            update(trained_tokens=600, micro_batches=2),
            [0.75],
        ),  # 150 tokens per update, in two times 100
        (update(trained_tokens=900, micro_batches=2), [1.0]),  # never more than full
        (update(trained_tokens=600, micro_batches=0), []),
        (update(), []),
        (Event(line=1, time=1.0, kind="message", message="training begins"), []),
    ],
)
def test_efficiency_is_real_tokens_over_the_token_budget(here: Settings, event: Event, ratio: list[float]) -> None:
    with service(here) as client:
        make_job(client)
    start_job(here, event)
    assert ratios(here) == ratio


def test_efficiency_is_of_the_callers_running_jobs(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    with service(here) as client:
        make_job(client, ann)
        assert ratios(here) == []
        start_job(here, update(trained_tokens=600, micro_batches=2))
        make_job(client, ann)
    assert len(ratios(here)) == len(ratios(here, Caller(name="ann", sees="ann"))) == 1
    assert ratios(here, Caller(name="bob", sees="bob")) == []

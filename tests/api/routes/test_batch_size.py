"""Batch size arithmetic and monitoring; plans are in tests/acceptance."""

import pytest
from starlette.testclient import TestClient

from onyx.jobs.models import JobProgress
from onyx.settings import Settings
from tests.api.job_states import start_job
from tests.api.service import AT, make_job, service


@pytest.mark.parametrize(("target", "actual", "steps"), [(32, 8, 4), (33, 8, 5), (1, 8, 1), (8, 8, 1)])
def test_steps_reach_the_target(client: TestClient, target: int, actual: int, steps: int) -> None:
    query = {"target_batch_size": target, "actual_batch_size": actual}
    answer = client.post(f"{AT}/calculate-accumulation-steps", params=query).json()
    assert (answer["accumulation_steps"], answer["calculation"]) == (steps, f"ceil({target} / {actual}) = {steps}")
    made = client.post(
        f"{AT}/calculate-effective-batch-size", params={"actual_batch_size": actual, "accumulation_steps": steps}
    ).json()
    assert made["effective_batch_size"] == actual * steps >= target


@pytest.mark.parametrize(
    ("rule", "rate", "calculation"),
    [
        (None, 0.00025, "0.001 / 4 = 0.00025"),
        ("inverse", 0.00025, "0.001 / 4 = 0.00025"),
        ("linear", 0.004, "0.001 * 4 = 0.004"),
        ("sqrt", 0.002, "0.001 * sqrt(4) = 0.002"),
        ("none", 0.001, "0.001 = 0.001"),
    ],
)
def test_a_learning_rate_by_each_rule(client: TestClient, rule: str | None, rate: float, calculation: str) -> None:
    query = {"base_lr": 0.001, "accumulation_steps": 4} | ({"rule": rule} if rule else {})
    answer = client.post(f"{AT}/adjust-learning-rate", params=query).json()
    assert answer["adjusted_learning_rate"] == pytest.approx(rate)
    assert answer["calculation"] == calculation


@pytest.mark.parametrize("wrong", [0, -1, 1_000_001, 1.5, "many", "nan"])
def test_numbers_out_of_range_are_refused(client: TestClient, wrong: float | str) -> None:
    query = {"target_batch_size": 8, "actual_batch_size": wrong}
    assert client.post(f"{AT}/calculate-accumulation-steps", params=query).status_code == 422
    if wrong not in (1_000_001, 1.5):  # valid learning rates
        rate = {"base_lr": wrong, "accumulation_steps": 4}
        assert client.post(f"{AT}/adjust-learning-rate", params=rate).status_code == 422


def test_monitoring_shows_real_jobs(here: Settings) -> None:
    with service(here) as client:
        assert client.post(f"{AT}/optimize", json={"action": "monitor"}).json()["details"]["running"] == {}
        job = make_job(client)
        start_job(here, progress=JobProgress(update=3))
        running = client.post(f"{AT}/optimize", json={"action": "monitor"}).json()["details"]["running"]
    assert {name: progress["update"] for name, progress in running.items()} == {job: 3}


def test_a_plan_needs_a_model(client: TestClient) -> None:
    for action in ("calculate", "optimize"):
        refused = client.post(f"{AT}/optimize", json={"action": action})
        assert (refused.status_code, "model_name" in refused.json()["detail"]) == (422, True)

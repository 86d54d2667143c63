"""`/metrics`: requests of this process, and jobs, runners, GPUs and disk of its home."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from onyx.api.router import make_router
from onyx.jobs.runner import bulletin
from onyx.jobs.runner.bulletin import Bulletin
from onyx.memory.devices.device import Device
from onyx.settings import Settings
from tests.api.service import service

BODY = {
    "model_name": "onyx/tiny",
    "dataset_config": {"texts": ["one", "two"]},
    "training_config": {"epochs": 1},
    "user_id": 1,
}
PREFIX = "/gradient-accumulation"


def quiet(home: Path, **more: object) -> Settings:
    """A service without a runner: jobs keep waiting."""
    return Settings.model_validate({"home": home, "embedded_runner": False} | more)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with service(quiet(tmp_path)) as client:
        yield client


def read(client: TestClient) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and label values (sorted by label name), as Prometheus parses them."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_requests_are_counted_by_template(client: TestClient) -> None:
    client.get(f"{PREFIX}/stats/accumulation_1_0123456789")
    client.get(f"{PREFIX}/stats/accumulation_2_0123456789")
    requests = read(client)["onyx_http_requests_total"]
    assert requests["GET", f"{PREFIX}/stats/{{training_id}}", "404"] >= 2
    assert not [labels for labels in requests if "0123456789" in labels[1]]


def test_an_embedding_apps_prefix_is_part_of_the_template(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    app.include_router(make_router(quiet(tmp_path)), prefix="/api/v1")
    with TestClient(app) as client, caplog.at_level(logging.INFO, logger="onyx.api.onyx_route"):
        answer = client.get(f"/api/v1{PREFIX}/training", headers={"x-request-id": "mine"})
    (record,) = [record for record in caplog.records if record.name == "onyx.api.onyx_route"]
    line = vars(record)
    assert answer.headers["x-request-id"] == line["request_id"] == "mine"
    assert (line["method"], line["status"], line["owner"]) == ("GET", 200, "local")
    assert line["route"] == f"/api/v1{PREFIX}/training"
    assert line["ms"] > 0


def test_jobs_queue_runners_and_disk(client: TestClient, tmp_path: Path) -> None:
    assert client.post(f"{PREFIX}/training/with-accumulation", json=BODY).status_code == 202
    metrics = read(client)
    assert metrics["onyx_jobs"]["validating",] == 1
    assert metrics["onyx_jobs"]["succeeded",] == 0
    assert metrics["onyx_queue_seconds"][()] == 0
    assert metrics["onyx_runners"][()] == 0
    assert metrics["onyx_free_disk_bytes"][()] > 0


def test_gpus_of_every_host_are_shown(client: TestClient, tmp_path: Path) -> None:
    for host, degrees in (("alpha", 60.0), ("beta", 90.0)):
        gpu = Device(
            kind="cuda",
            index=0,
            name="T4",
            uuid=f"GPU-{host}",
            memory_total=100,
            memory_free=40,
            utilization=50.0,
            temperature=degrees,
        )
        seen = Bulletin(runner_id=f"r-{host}", host=host, time=time.time(), events=2, trained_tokens=30, gpus=(gpu,))
        bulletin.post(tmp_path / "run", seen)
    metrics = read(client)
    assert metrics["onyx_gpu_temperature_celsius"] == {
        ("cuda:0", "alpha", "GPU-alpha"): 60.0,
        ("cuda:0", "beta", "GPU-beta"): 90.0,
    }
    assert list(metrics["onyx_gpu_hot"].values()) == [0.0, 1.0]
    assert set(metrics["onyx_gpu_utilization_ratio"].values()) == {0.5}
    assert set(metrics["onyx_gpu_memory_used_bytes"].values()) == {60.0}
    assert "onyx_gpu_power_watts" not in metrics
    assert metrics["onyx_trained_tokens_total"] == {("alpha",): 30.0, ("beta",): 30.0}
    assert metrics["onyx_events_total"]["beta",] == 2


def test_a_full_quota_is_a_413_that_says_what_to_do(tmp_path: Path) -> None:
    with service(quiet(tmp_path, owner_disk_bytes=1000)) as client:
        made = client.post(f"{PREFIX}/training/with-accumulation", json=BODY, headers={"Idempotency-Key": "k"})
        folder = tmp_path / "jobs" / made.json()["training_id"]
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x" * 1000)
        refused = client.post(f"{PREFIX}/training/with-accumulation", json=BODY)
        assert refused.status_code == 413
        assert "1,000 of the 1,000 bytes" in refused.json()["detail"]
        again = client.post(f"{PREFIX}/training/with-accumulation", json=BODY, headers={"Idempotency-Key": "k"})
        assert again.json()["training_id"] == made.json()["training_id"]
        other = client.post(f"{PREFIX}/training/with-accumulation", json=BODY | {"user_id": 2})
        assert other.status_code == 202


def test_a_nearly_full_disk_is_a_503(tmp_path: Path) -> None:
    with service(quiet(tmp_path, free_disk_bytes=2**62)) as client:
        refused = client.post(f"{PREFIX}/training/with-accumulation", json=BODY)
    assert refused.status_code == 503
    assert "nearly full" in refused.json()["detail"]
    assert refused.headers["retry-after"] == "60"

"""Stored configs, and configs of jobs under the same route."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.job_states import end_job, start_job
from tests.api.service import AT, make_job, make_key, service, settings


@pytest.mark.parametrize(
    ("body", "effective", "scale"),
    [
        ({}, 32, 0.25),
        ({"accumulation_steps": 2}, 16, 0.5),
        ({"accumulation_steps": 2, "target_effective_batch_size": 64}, 64, 0.5),
        ({"target_batch_size": 48, "gradient_scaling": False}, 48, 1.0),
    ],
)
def test_a_new_config_shows_its_effective_batch_size_and_scale(
    client: TestClient, body: dict[str, Any], effective: int, scale: float
) -> None:
    made = client.post(f"{AT}/config", json=body).json()
    assert (made["effective_batch_size"], made["learning_rate_scale"]) == (effective, scale)
    assert client.get(f"{AT}/config/{made['training_id']}").json()["config"] == made["config"]


def test_replacing_a_config_resets_fields_that_are_left_out(client: TestClient) -> None:
    made = client.post(f"{AT}/config", json={"accumulation_steps": 8, "warmup_steps": 5}).json()["training_id"]
    changed = client.put(f"{AT}/config/{made}", json={"gradient_clipping": None}).json()["config"]
    assert (changed["accumulation_steps"], changed["warmup_steps"], changed["gradient_clipping"]) == (4, 0, None)


def test_each_owner_has_a_limited_number_of_configs(here: Settings) -> None:
    at = settings(here.home, configs_per_owner=2)
    _, ann = make_key(at, "ann")
    _, bob = make_key(at, "bob")
    with service(at) as client:
        ids = [client.post(f"{AT}/config", json={}, headers=ann).json()["training_id"] for _ in range(2)]
        refused = client.post(f"{AT}/config", json={}, headers=ann)
        assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (429, True)
        assert "2 configs are stored" in refused.json()["detail"]
        assert client.put(f"{AT}/config/{ids[0]}", json={}, headers=ann).status_code == 200
        assert client.post(f"{AT}/config", json={}, headers=bob).status_code == 200
        client.delete(f"{AT}/cleanup/{ids[0]}", headers=ann)
        assert client.post(f"{AT}/config", json={}, headers=ann).status_code == 200


def test_only_n_and_clipping_of_a_job_can_change(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        start_job(here)
        assert client.get(f"{AT}/config/{job}").json()["config"]["accumulation_steps"] == 2  # from the plan
        changed = client.put(f"{AT}/config/{job}", json={"accumulation_steps": 4, "gradient_clipping": 0.5})
        assert changed.json()["config"]["accumulation_steps"] == 4
        for wrong in ({}, {"accumulation_steps": 4, "warmup_steps": 1}, {"mixed_precision": False}):
            refused = client.put(f"{AT}/config/{job}", json=wrong)
            assert refused.status_code == 400
            assert "accumulation_steps and gradient_clipping" in refused.json()["detail"]


def test_the_config_of_a_finished_job_cannot_change(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        end_job(here)
        assert client.put(f"{AT}/config/{job}", json={"accumulation_steps": 4}).status_code == 400

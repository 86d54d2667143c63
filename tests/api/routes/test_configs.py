"""Stored configs, and the configs of jobs under the same route."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.lives import end, start
from tests.api.service import AT, make_job, make_key, service, settings


@pytest.mark.parametrize(
    ("asked", "effective", "scale"),
    [
        ({}, 32, 0.25),
        ({"accumulation_steps": 2}, 16, 0.5),
        ({"accumulation_steps": 2, "target_effective_batch_size": 64}, 64, 0.5),
        ({"target_batch_size": 48, "gradient_scaling": False}, 48, 1.0),
    ],
)
def test_a_config_answers_what_it_comes_to(
    client: TestClient, asked: dict[str, Any], effective: int, scale: float
) -> None:
    made = client.post(f"{AT}/config", json=asked).json()
    assert (made["effective_batch_size"], made["learning_rate_scale"]) == (effective, scale)
    assert client.get(f"{AT}/config/{made['training_id']}").json()["config"] == made["config"]


def test_replacing_one_leaves_nothing_of_the_former(client: TestClient) -> None:
    made = client.post(f"{AT}/config", json={"accumulation_steps": 8, "warmup_steps": 5}).json()["training_id"]
    changed = client.put(f"{AT}/config/{made}", json={"gradient_clipping": None}).json()["config"]
    assert (changed["accumulation_steps"], changed["warmup_steps"], changed["gradient_clipping"]) == (4, 0, None)


def test_so_many_and_no_more_for_each_owner(here: Settings) -> None:
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


def test_of_a_job_n_and_clipping_change_and_nothing_else(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        start(here)
        assert client.get(f"{AT}/config/{job}").json()["config"]["accumulation_steps"] == 2  # the plan's
        changed = client.put(f"{AT}/config/{job}", json={"accumulation_steps": 4, "gradient_clipping": 0.5})
        assert changed.json()["config"]["accumulation_steps"] == 4
        for wrong in ({}, {"accumulation_steps": 4, "warmup_steps": 1}, {"mixed_precision": False}):
            refused = client.put(f"{AT}/config/{job}", json=wrong)
            assert refused.status_code == 400
            assert "accumulation_steps and gradient_clipping" in refused.json()["detail"]


def test_of_a_job_that_has_ended_nothing_changes(here: Settings) -> None:
    with service(here) as client:
        job = make_job(client)
        end(here)
        assert client.put(f"{AT}/config/{job}", json={"accumulation_steps": 4}).status_code == 400

"""Requests for a plan that are refused, by the API or by the planner's helper process."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.service import AT, service, settings

PLAN = f"{AT}/calculate-batch-size"
REQUEST = {"model_name": "onyx/tiny", "target_effective_batch_size": 8}


def test_a_request_out_of_range_does_not_count_as_a_plan(here: Settings) -> None:
    with service(settings(here.home, planning_rate_limit="1/hour", most_max_length=64)) as client:
        for _ in range(3):
            answer = client.post(PLAN, json=REQUEST | {"max_length": 65})
            assert answer.status_code == 422
            assert "at most 64" in answer.json()["detail"]
        assert client.post(PLAN, json=REQUEST | {"gpu_ids": [7]}).status_code == 400
        assert client.post(PLAN, json=REQUEST | {"gpu_ids": [7]}).status_code == 429


def test_a_gpu_that_this_host_lacks_is_a_400_that_names_it(client: TestClient) -> None:
    for answer in (
        client.post(PLAN, json=REQUEST | {"gpu_ids": [7]}),
        client.get(PLAN, params={"model_name": "onyx/tiny", "gpu_ids": 7}),
    ):
        assert answer.status_code == 400
        assert "7" in answer.json()["detail"]


@pytest.mark.parametrize("config", ["{", '{"model_type": "unknown-type"}'])
def test_the_error_of_a_broken_model_has_no_path(here: Settings, tmp_path: Path, config: str) -> None:
    """The error of the library that reads it names the file."""
    broken = tmp_path / "models" / "broken"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text(config)
    with service(settings(here.home, model_root=tmp_path / "models")) as client:
        answer = client.post(PLAN, json=REQUEST | {"model_name": "broken", "gpus": [{"name": "A100", "memory_gb": 40}]})
    assert answer.status_code == 400, answer.text
    assert "model" in answer.json()["detail"]
    assert str(tmp_path) not in answer.text

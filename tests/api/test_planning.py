"""Plans are made by a helper process; here is what keeps it from being asked, and what is told when it says no."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.service import AT, service, settings

PLAN = f"{AT}/calculate-batch-size"
ASKED = {"model_name": "onyx/tiny", "target_effective_batch_size": 8}


def test_what_is_out_of_range_costs_no_plan(here: Settings) -> None:
    with service(settings(here.home, planning_rate_limit="1/hour", most_max_length=64)) as client:
        for _ in range(3):
            answer = client.post(PLAN, json=ASKED | {"max_length": 65})
            assert answer.status_code == 422
            assert "at most 64" in answer.json()["detail"]
        assert client.post(PLAN, json=ASKED | {"gpu_ids": [7]}).status_code == 400
        assert client.post(PLAN, json=ASKED | {"gpu_ids": [7]}).status_code == 429


def test_a_card_that_is_not_here_is_a_400_that_says_so(client: TestClient) -> None:
    for answer in (
        client.post(PLAN, json=ASKED | {"gpu_ids": [7]}),
        client.get(PLAN, params={"model_name": "onyx/tiny", "gpu_ids": 7}),
    ):
        assert answer.status_code == 400
        assert "7" in answer.json()["detail"]


@pytest.mark.parametrize("config", ["{", '{"model_type": "nobody-knows"}'])
def test_a_broken_model_of_the_operators_tells_no_path(here: Settings, tmp_path: Path, config: str) -> None:
    """The library that reads it names the file in its own words."""
    broken = tmp_path / "models" / "broken"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text(config)
    with service(settings(here.home, model_root=tmp_path / "models")) as client:
        answer = client.post(PLAN, json=ASKED | {"model_name": "broken", "gpus": [{"name": "A100", "memory_gb": 40}]})
    assert answer.status_code == 400, answer.text
    assert "model" in answer.json()["detail"]
    assert str(tmp_path) not in answer.text

"""Document 002's curl commands, run by curl as they are printed, against a real service."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.api_server import ApiServer, api_server
from tests.waiting import wait_for

SCRIPT = Path(__file__).with_name("documented.sh").read_text()
COMMANDS = {
    title: command.strip() for title, command in re.findall(r"# ([^\n]+)\n(curl .*?)(?=\n\n#|\Z)", SCRIPT, re.DOTALL)
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("documented")) as it:
        yield it


def curl(server: ApiServer, title: str, *changes: tuple[str, str]) -> tuple[int, Any]:
    """Run the documented command, and return the status and the answer."""
    command = COMMANDS[title].replace("\\\n", " ").replace("localhost:8000", f"localhost:{server.port}")
    for old, new in changes:
        assert old in command
        command = command.replace(old, new)
    words = [*shlex.split(command), "--silent", "--max-time", "60", "--write-out", "\n%{http_code}"]
    answer, _, status = subprocess.run(words, capture_output=True, text=True, check=True).stdout.rpartition("\n")
    return int(status), json.loads(answer)


def ended(server: ApiServer, training_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = {}

    def is_over() -> bool:
        change = ("stats/accumulation_1234567890", f"training/{training_id}")
        status, now = curl(server, "Get accumulation statistics", change)
        answer.update(now)
        return status == 200 and now["success"] is not None

    wait_for(is_over, "the training ends")
    return answer


def test_every_command_of_the_document_is_here() -> None:
    assert len(COMMANDS) == 16


def test_configs(server: ApiServer) -> None:
    status, made = curl(server, "Configure gradient accumulation")
    assert status == 200
    assert made["success"] is True
    assert made["effective_batch_size"] == 32
    assert made["accumulation_steps"] == 4
    assert made["learning_rate_scale"] == 0.25
    status, found = curl(server, "Get configuration", ("accumulation_1234567890", made["training_id"]))
    assert status == 200
    assert found["config"] == made["config"]
    assert set(found) == {"training_id", "config", "timestamp"}
    for title in ("Get configuration", "Check configuration"):
        status, missing = curl(server, title)
        assert status == 404
        assert set(missing) == {"detail"}


@pytest.mark.parametrize(
    ("title", "kind", "steps", "micro_batch"),
    [("Train with gradient accumulation", "accumulation_", 8, 1), ("Large batch training", "large_batch_", 1, 2)],
)
def test_trainings(server: ApiServer, title: str, kind: str, steps: int, micro_batch: int) -> None:
    status, made = curl(server, title, ('"gpt2"', '"onyx/tiny"'))
    assert status == 202
    assert made["training_id"].startswith(kind)
    assert made["success"] is None
    assert made["model_path"] is None
    done = ended(server, made["training_id"])
    assert done["success"] is True, done
    assert done["effective_batch_size"] == 2  # what there is, not what was asked for
    assert done["accumulation_steps"] == steps
    assert done["actual_batch_size_per_gpu"] == micro_batch
    assert done["adjusted_learning_rate"] == 5e-5
    assert [entry["epoch"] for entry in done["training_history"]] == [1, 2, 3]
    assert done["progress"]["percent"] == 100
    assert done["progress"]["tokens_per_second"] > 0
    assert done["progress"]["planned_bytes"] > 0
    assert done["plan"]["devices"][0]["label"] == "cpu:0"
    assert (Path(done["model_path"]) / "model.safetensors").exists()
    status, stats = curl(server, "Get accumulation statistics", ("accumulation_1234567890", made["training_id"]))
    assert status == 200
    assert stats["current_step"] == 3
    assert stats["total_samples"] == 6
    assert len(stats["gradient_norms"]) == len(stats["accumulation_times"]) == 3
    status, everything = curl(server, "Get all statistics")
    assert made["training_id"] in [each["training_id"] for each in everything["accumulation_stats"]]
    assert everything["total_sessions"] == len(everything["accumulation_stats"])


def test_a_model_from_a_hub_that_cannot_be_reached(server: ApiServer) -> None:
    status, made = curl(server, "Train with gradient accumulation")
    assert status == 202
    failed = ended(server, made["training_id"])
    assert failed["status"] == "failed"
    assert failed["success"] is False
    assert "gpt2" in failed["error"]
    assert "Traceback" not in failed["error"]


@pytest.mark.parametrize(
    ("title", "gpus"),
    [
        ("Calculate optimal batch size", ',\n    "gpu_ids": [0, 1, 2, 3]'),
        ("Simple calculation", "&gpu_ids=0&gpu_ids=1&gpu_ids=2&gpu_ids=3"),
    ],
)
def test_batch_sizes(server: ApiServer, title: str, gpus: str) -> None:
    status, refused = curl(server, title)
    assert status == 400
    assert "No valid GPUs found" in refused["detail"]
    status, answer = curl(server, title, (gpus, ""), ("gpt2", "onyx/tiny"))
    assert status == 200, answer
    numbers = answer.get("recommendations", answer)
    assert numbers["effective_batch_size"] == 64
    assert numbers["total_gpus"] == 0
    assert answer["gpu_info"] == {}


def test_a_body_without_its_content_type(server: ApiServer) -> None:
    status, refused = curl(server, "Optimize batch size")
    assert status == 422
    assert "Content-Type: application/json" in refused["detail"]


def test_statistics_of_nothing(server: ApiServer) -> None:
    for title in ("Get accumulation statistics", "Check gradient norms"):
        status, missing = curl(server, title)
        assert status == 404
        assert set(missing) == {"detail"}


def test_performance(server: ApiServer) -> None:
    status, metrics = curl(server, "Get performance metrics")
    assert status == 200
    assert metrics["gpu_count"] == metrics["available_gpus"] == 0
    assert metrics["accumulation_efficiency"] == {}
    status, advice = curl(server, "Get performance recommendations")
    assert status == 200
    assert advice["optimal_settings"] == {
        "batch_size_per_gpu": 2,
        "accumulation_steps": 32,
        "effective_batch_size": 64,
        "learning_rate_scale": 0.03125,
    }


def test_sums(server: ApiServer) -> None:
    assert curl(server, "Calculate effective batch size")[1]["calculation"] == "8 * 4 = 32"
    assert curl(server, "Calculate accumulation steps")[1]["calculation"] == "ceil(32 / 8) = 4"
    answer = curl(server, "Adjust learning rate")[1]
    assert answer["adjusted_learning_rate"] == 0.00025
    assert answer["calculation"] == "0.001 / 4 = 0.00025"

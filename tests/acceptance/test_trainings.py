"""Trainings over HTTP: create, follow, reconfigure, pause, resume, cancel, download, delete."""

import io
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.api_server import ApiServer, api_server
from tests.waiting import PATIENCE, wait_for

TEXTS = [f"the square of {n} is {n * n}" for n in range(64)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    root = tmp_path_factory.mktemp("data")
    (root / "squares.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with api_server(tmp_path_factory.mktemp("trainings"), data_root=root) as it:
        yield it


@pytest.fixture(scope="module")
def http(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=PATIENCE) as client:
        yield client


def body(**more: Any) -> dict[str, Any]:
    return {
        "model_name": "onyx/tiny",
        "dataset_config": {"texts": TEXTS, "max_length": 64},
        "training_config": {"epochs": 1, "learning_rate": 1e-3},
        "user_id": 7,
        "target_effective_batch_size": 8,
    } | more


def long(**training: Any) -> dict[str, Any]:
    """The body of a training that is still running when a test looks at it."""
    return body(training_config={"epochs": 400, "save_every_updates": 5} | training)


def make(http: httpx.Client, asked: dict[str, Any], **query: Any) -> dict[str, Any]:
    answer = http.post("/training/with-accumulation", json=asked, params=query)
    assert answer.status_code in (200, 202), answer.text
    made: dict[str, Any] = answer.json()
    return made


def until(http: httpx.Client, training_id: str, **wanted: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def reached() -> bool:
        found.update(http.get(f"/training/{training_id}").json())
        return all(found[name] == value for name, value in wanted.items())

    wait_for(reached, f"{wanted}")
    return found


@pytest.fixture(scope="module")
def done(http: httpx.Client) -> dict[str, Any]:
    """A training that has succeeded."""
    answer = http.post("/training/with-accumulation?wait=240", json=body())
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    assert made["success"] is True, made
    return made


def test_waiting_no_longer_than_asked(http: httpx.Client) -> None:
    answer = http.post("/training/with-accumulation?wait=0", json=long())
    assert answer.status_code == 202
    training_id = answer.json()["training_id"]
    assert http.post(f"/training/{training_id}/cancel").status_code == 200
    until(http, training_id, status="cancelled", success=False)


def test_events_by_page_and_as_a_stream(http: httpx.Client, done: dict[str, Any]) -> None:
    events = http.get(f"/training/{done['training_id']}/events?limit=1000").json()
    assert events["has_more"] is False
    numbers = [event["seq"] for event in events["data"]]
    assert numbers == list(range(1, len(numbers) + 1))
    first = http.get(f"/training/{done['training_id']}/events?limit=2").json()
    assert first["has_more"] is True
    assert first["data"] == events["data"][:2]
    with http.stream("GET", f"/training/{done['training_id']}/events", headers=stream(after=3)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = "".join(answer.iter_text()).strip().split("\n\n")
    assert [json.loads(fields(block)["data"]) for block in blocks[:-1]] == events["data"][3:]
    assert [fields(block)["id"] for block in blocks[:-1]] == [str(number) for number in numbers[3:]]
    assert fields(blocks[-1])["event"] == "done"
    assert json.loads(fields(blocks[-1])["data"])["status"] == "succeeded"


def stream(after: int) -> dict[str, str]:
    return {"Accept": "text/event-stream", "Last-Event-ID": str(after)}


def fields(block: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in block.splitlines())


def test_a_stream_follows_a_training_under_way(http: httpx.Client) -> None:
    training_id = make(http, body())["training_id"]
    with http.stream("GET", f"/training/{training_id}/events", headers={"Accept": "text/event-stream"}) as answer:
        text = "".join(answer.iter_text())
    kinds = [json.loads(line[6:]).get("kind") for line in text.splitlines() if line.startswith("data: ")]
    assert kinds[0] == "status"
    assert "metrics" in kinds
    assert text.rstrip().splitlines()[-2] == "event: done"


def test_the_model_as_a_tar_and_file_by_file(http: httpx.Client, done: dict[str, Any]) -> None:
    path = f"/training/{done['training_id']}/model"
    with tarfile.open(fileobj=io.BytesIO(http.get(path).content)) as tar:
        inside = {member.name: member.size for member in tar.getmembers()}
        config = tar.extractfile(f"{done['training_id']}/config.json")
        assert config is not None
        assert http.get(path, params={"file": "config.json"}).content == config.read()
    assert f"{done['training_id']}/model.safetensors" in inside
    published = Path(done["model_path"])
    assert inside == {
        f"{done['training_id']}/{each.relative_to(published)}": each.stat().st_size for each in published.rglob("*")
    }
    for name in ("../metrics.csv", "/etc/passwd", "nothing"):
        assert http.get(path, params={"file": name}).status_code == 404


def test_logs_keep_the_hosts_paths_to_themselves(http: httpx.Client, server: ApiServer, done: dict[str, Any]) -> None:
    failed = make(http, body(model_name="nobody/nothing"), wait=60)
    assert failed["status"] == "failed"
    for training_id in (done["training_id"], failed["training_id"]):
        page = http.get(f"/training/{training_id}/logs?limit=1000").json()
        text = json.dumps(page)
        assert str(server.settings.home) not in text
        assert "Traceback" not in text


@pytest.mark.parametrize("method", ["full", "lora"])
def test_no_answer_tells_a_path_of_the_host(http: httpx.Client, server: ApiServer, method: str) -> None:
    """Every GET route of both APIs, for a succeeded training. Only `model_path` may contain a path of the host."""
    training_id = make(http, body(training_config={"epochs": 1, "method": method}), wait=60)["training_id"]
    schema = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    looks = [path for path, methods in schema.items() if "get" in methods and not path.endswith("{file_id}")]
    names = re.compile(r"\{(training_id|fine_tuning_job_id)\}")
    for path in looks:
        where = f"{server.url}{names.sub(training_id, path)}"
        text = httpx.get(where, params={"model_name": "onyx/tiny", "limit": 100}, timeout=PATIENCE).text
        text = re.sub(r'"model_path":"[^"]*"', "", text)
        for secret in (str(server.settings.home), str(server.settings.data_root), sys.prefix):
            assert secret not in text, path


def test_pause_and_resume(http: httpx.Client) -> None:
    training_id = make(http, long())["training_id"]
    until(http, training_id, status="running")
    wait_for(lambda: (http.get(f"/stats/{training_id}").json()["current_step"] or 0) > 5, "some updates")
    assert http.get("/performance/metrics").json()["accumulation_efficiency"][training_id] > 0
    http.post(f"/training/{training_id}/pause")
    paused = until(http, training_id, status="paused")
    assert paused["success"] is None
    assert http.post(f"/training/{training_id}/resume").json()["status"] in ("queued", "running")
    until(http, training_id, status="running")
    http.post(f"/training/{training_id}/cancel")
    until(http, training_id, status="cancelled")
    refused = http.post(f"/training/{training_id}/resume")
    assert refused.status_code == 400
    assert "cancelled" in refused.json()["detail"]


def test_a_running_training_takes_another_n(http: httpx.Client) -> None:
    training_id = make(http, long() | {"accumulation_steps": 2})["training_id"]
    until(http, training_id, status="running")
    answer = http.put(f"/config/{training_id}", json={"accumulation_steps": 4, "gradient_clipping": None})
    assert answer.status_code == 200, answer.text
    assert answer.json()["config"]["accumulation_steps"] == 4
    refused = http.put(f"/config/{training_id}", json={"accumulation_steps": 4, "warmup_steps": 3})
    assert refused.status_code == 400
    assert "warmup_steps" in refused.json()["detail"]

    def heard() -> bool:
        events = http.get(f"/training/{training_id}/events?limit=1000").json()["data"]
        return any("16 samples an update, no clipping" in event["message"] for event in events)

    wait_for(heard, "the change takes effect")
    assert http.delete(f"/cleanup/{training_id}").status_code == 400
    assert http.delete(f"/training/{training_id}").status_code == 400
    http.post(f"/training/{training_id}/cancel")
    until(http, training_id, status="cancelled")


def test_a_stored_config_is_used(http: httpx.Client) -> None:
    config = {"accumulation_steps": 4, "target_effective_batch_size": 16, "gradient_clipping": 0.5}
    stored = http.post("/config", json=config).json()["training_id"]
    asked = {name: value for name, value in body().items() if name != "target_effective_batch_size"}
    made = make(http, asked | {"gradient_accumulation_config": stored}, wait=60)
    assert made["success"] is True, made
    assert made["accumulation_steps"] == 4
    assert made["effective_batch_size"] == 16
    assert made["actual_batch_size_per_gpu"] == 4
    shown = http.get(f"/config/{made['training_id']}").json()["config"]
    assert shown["gradient_clipping"] == 0.5
    missing = http.post("/training/large-batch", json=body(gradient_accumulation_config="accumulation_1_0000000000"))
    assert missing.status_code == 404


def test_the_operators_data_root(http: httpx.Client) -> None:
    made = make(http, body(dataset_config={"path": "squares.jsonl", "max_length": 64}), wait=60)
    assert made["success"] is True, made
    for path in ("../secrets.jsonl", "/etc/passwd", "nothing.jsonl", ".", "a\x00b"):
        refused = http.post("/training/with-accumulation", json=body(dataset_config={"path": path}))
        assert refused.status_code == 422, path
        assert "data root" in refused.json()["detail"]


def test_the_same_request_twice_is_one_training(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "once"}
    first, second = (
        http.post("/training/with-accumulation", json=body(), headers=headers).json()["training_id"] for _ in range(2)
    )
    assert first == second
    conflict = http.post("/training/with-accumulation", json=body(target_effective_batch_size=16), headers=headers)
    assert conflict.status_code == 400
    until(http, first, status="succeeded")


def test_what_cannot_be_is_said_before_anything_is_stored(http: httpx.Client) -> None:
    before = http.get("/stats").json()["total_sessions"]
    for asked, word in (
        (body(rank=1), "rank"),
        (body(unknown=1), "unknown"),
        (body(dataset_config={"texts": ["a"], "file_id": "file-1"}), "exactly one"),
        (body(training_config={"epoch": 1}), "epoch"),
        (body(training_config={"epochs": 0}), "epochs"),
        (body(target_effective_batch_size=0), "target_effective_batch_size"),
    ):
        refused = http.post("/training/with-accumulation", json=asked)
        assert refused.status_code == 422
        assert word in refused.json()["detail"]
    assert http.get("/stats").json()["total_sessions"] == before


def test_cleaning_up_frees_files_and_keeps_models(http: httpx.Client, server: ApiServer) -> None:
    made = make(http, body(), wait=60)
    folder = server.settings.job_dir(made["training_id"])
    assert (folder / "checkpoints").is_dir()
    cleaned = http.delete(f"/cleanup/{made['training_id']}").json()
    assert cleaned["message"] == "Accumulation resources cleaned up successfully"
    assert not (folder / "checkpoints").exists()
    assert not (folder / "attempts").exists()
    assert (folder / "model" / "model.safetensors").exists()
    assert http.get(f"/training/{made['training_id']}").json()["success"] is True
    assert http.delete("/cleanup/nobody").status_code == 200
    http.post("/config", json={})
    everything = http.delete("/cleanup").json()
    assert everything["cleaned_sessions"] >= 1
    assert http.delete("/cleanup").json()["cleaned_sessions"] == 0


def test_deleting_takes_everything(http: httpx.Client, server: ApiServer) -> None:
    made = make(http, body(), wait=60)
    assert http.delete(f"/training/{made['training_id']}").status_code == 200
    assert http.get(f"/training/{made['training_id']}").status_code == 404
    assert not server.settings.job_dir(made["training_id"]).exists()


def test_the_list_is_paged(http: httpx.Client, done: dict[str, Any]) -> None:
    first = http.get("/training?limit=1").json()
    assert first["has_more"] is True
    second = http.get(f"/training?limit=1&after={first['data'][0]['training_id']}").json()
    assert second["data"][0]["training_id"] != first["data"][0]["training_id"]
    succeeded = http.get("/training?status=succeeded&limit=100").json()["data"]
    assert done["training_id"] in [each["training_id"] for each in succeeded]
    assert {each["status"] for each in succeeded} == {"succeeded"}


def test_a_planner_asked_for_cards_that_are_not_here(http: httpx.Client) -> None:
    asked = {
        "model_name": "onyx/tiny",
        "target_effective_batch_size": 64,
        "gpus": [{"name": "A100", "memory_gb": 40}, {"name": "T4", "memory_gb": 15}],
    }
    answer = http.post("/calculate-batch-size", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["total_gpus"] == 2
    assert [each["name"] for each in answer.json()["plan"]["devices"]] == ["A100", "T4"]
    tight = asked | {"target_effective_batch_size": 2**16, "max_length": 512, "gpus": [{"name": "T4", "memory_gb": 4}]}
    plans = {
        objective: http.post("/calculate-batch-size", json=tight | {"objective": objective}).json()["plan"]
        for objective in ("sft", "dpo")
    }
    assert [plans[each]["objective"] for each in plans] == list(plans)
    pairs, samples = (plans[each]["devices"][0]["micro_batch"] for each in ("dpo", "sft"))
    assert 0.4 * samples < pairs < 0.6 * samples  # a pair is two rows
    advice = http.get("/performance/recommendations?model_name=onyx/tiny&target_batch_size=64").json()
    assert advice["optimal_settings"]["effective_batch_size"] >= 64
    for action in ("calculate", "optimize", "monitor"):
        answer = http.post("/optimize", json={"action": action, "model_name": "onyx/tiny"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["details"]

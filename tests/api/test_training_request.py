"""Limits of a training request, and the files and configs that it may name."""

import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api.service import AT, BODY, at_home, make_key, service, settings

TRAIN = f"{AT}/training/with-accumulation"


def post(
    client: TestClient, data: dict[str, Any] | None = None, headers: dict[str, str] | None = None, **more: Any
) -> tuple[int, str]:
    answer = client.post(TRAIN, json=BODY | ({"dataset_config": data} if data else {}) | more, headers=headers)
    return answer.status_code, str(answer.json().get("detail"))


def test_limits_of_a_job_are_422_and_named(here: Settings) -> None:
    tight = settings(here.home, most_rows=2, most_epochs=3, most_max_length=64)
    with service(tight) as client:
        assert post(client, {"texts": ["a", "b"], "max_length": 64}, training_config={"epochs": 3})[0] == 202
        refused: list[tuple[dict[str, Any], dict[str, Any], str]] = [
            ({"texts": ["a"] * 3}, {}, "texts may be at most 2"),
            ({"rows": [{"text": "a"}] * 3}, {}, "rows may be at most 2"),
            ({"texts": ["a"], "evaluation_rows": [{"text": "a"}] * 3, "max_length": 8}, {}, "evaluation_rows may be"),
            ({"texts": ["a"], "max_length": 65}, {}, "max_length may be at most 64"),
            ({"texts": ["a"], "max_length": 8}, {"training_config": {"epochs": 4}}, "epochs may be at most 3"),
        ]
        for data, more, message in refused:
            status, detail = post(client, {"max_length": 8} | data, **more)
            assert status == 422
            assert message in detail
        plan = {"model_name": "onyx/tiny", "target_effective_batch_size": 8, "max_length": 65}
        assert client.post(f"{AT}/calculate-batch-size", json=plan).status_code == 422


@pytest.mark.parametrize("path", ["a.jsonl", "deep/b.jsonl", "deep/../a.jsonl"])
def test_files_of_the_data_root_can_be_named(here: Settings, tmp_path: Path, path: str) -> None:
    root = tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    for name in ("a.jsonl", "deep/b.jsonl"):
        (root / name).write_text('{"text": "hello"}\n')
    with service(settings(here.home, data_root=root)) as client:
        assert post(client, {"path": path})[0] == 202


@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/passwd", "deep/../../secret", "link", "~/x", ".", "deep", "a\x00b", "pipe", "loop", "x" * 300],
)
def test_no_path_leads_out_of_the_data_root(here: Settings, tmp_path: Path, path: str) -> None:
    root = tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_text("s")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    with service(settings(here.home, data_root=root)) as client:
        for field in ({"path": path}, {"texts": ["a"], "evaluation_path": path}):
            status, detail = post(client, field)
            assert status == 422
            assert str(tmp_path) not in detail


def test_without_a_data_root_there_are_no_files(client: TestClient) -> None:
    status, detail = post(client, {"path": "a.jsonl"})
    assert status == 422
    assert "upload" in detail


def test_another_owners_file_and_config_are_404(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    _, bob = make_key(here, "bob")
    file_id = f"file-{'a' * 24}"
    at_home(here, lambda home: home.store.uploads.put(file_id, "bob", purpose="fine-tune", filename="x.jsonl", size=1))
    with service(here) as client:
        config = client.post(f"{AT}/config", json={}, headers=bob).json()["training_id"]
        for who, status in ((ann, 404), (bob, 202)):
            assert post(client, {"file_id": file_id}, headers=who)[0] == status
            assert post(client, headers=who, gradient_accumulation_config=config)[0] == status
        assert post(client, {"file_id": "../../etc/passwd"}, headers=bob)[0] == 404

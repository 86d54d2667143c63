import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from onyx.api.openai.routes import files
from onyx.settings import Settings
from tests.api.openai.world import CHAT, create, refused, upload
from tests.api.service import service


def test_a_file_comes_back_as_it_went(client: TestClient, home: Path) -> None:
    file = upload(client)
    assert file == {
        "id": file["id"],
        "object": "file",
        "bytes": len(CHAT) * 10,
        "created_at": file["created_at"],
        "expires_at": None,
        "filename": "train.jsonl",
        "purpose": "fine-tune",
        "status": "processed",
        "status_details": None,
    }
    assert client.get(f"/v1/files/{file['id']}").json() == file
    assert client.get(f"/v1/files/{file['id']}/content").content == CHAT * 10
    assert client.delete(f"/v1/files/{file['id']}").json() == {"id": file["id"], "object": "file", "deleted": True}
    assert refused(client.get(f"/v1/files/{file['id']}"), 404) == ("file_id", "not_found")
    assert list((home / "uploads").iterdir()) == []


def test_a_slow_disk_keeps_no_other_request_waiting(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []

    def sync(folder: Path) -> None:
        with pytest.raises(RuntimeError):  # in a thread, not on the event loop
            asyncio.get_running_loop()
        synced.append(folder)

    monkeypatch.setattr(files, "sync_directory", sync)
    upload(client)
    assert [folder.name for folder in synced] == ["uploads"]


def test_pages_go_from_the_last_id_on(client: TestClient) -> None:
    ids = [upload(client)["id"] for _ in range(3)]
    newest = client.get("/v1/files", params={"limit": 2}).json()
    assert ([file["id"] for file in newest["data"]], newest["has_more"]) == ([ids[2], ids[1]], True)
    rest = client.get("/v1/files", params={"limit": 2, "after": newest["last_id"]}).json()
    assert ([file["id"] for file in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    oldest = client.get("/v1/files", params={"order": "asc", "limit": 1}).json()
    assert oldest["first_id"] == ids[0]
    assert client.get("/v1/files", params={"purpose": "fine-tune-results"}).json()["data"] == []
    assert refused(client.get("/v1/files", params={"after": "file-x"})) == ("after", "invalid_value")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "vision"}, "purpose"),
        ({}, "purpose"),
        ({"purpose": "fine-tune", "expires_after[anchor]": "now"}, "expires_after.anchor"),
        ({"purpose": "fine-tune", "expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        (
            {"purpose": "fine-tune", "expires_after[anchor]": "created_at", "expires_after[seconds]": "59"},
            "expires_after.seconds",
        ),
    ],
)
def test_wrong_fields_are_named_and_leave_nothing(
    client: TestClient, home: Path, fields: dict[str, str], param: str
) -> None:
    response = client.post("/v1/files", files={"file": ("a.jsonl", CHAT)}, data=fields)
    assert refused(response)[0] == param
    assert list((home / "uploads").iterdir()) == []


def test_what_is_too_large_leaves_nothing(client: TestClient, home: Path) -> None:
    response = client.post("/v1/files", files={"file": ("a.jsonl", b"x" * 5000)}, data={"purpose": "fine-tune"})
    assert refused(response, 413)[1] == "too_large"
    assert list((home / "uploads").iterdir()) == []


def test_half_a_gigabyte_unless_the_operator_says_otherwise() -> None:
    assert Settings().upload_bytes == 512 * 2**20


def test_an_empty_file_or_none_is_refused(client: TestClient) -> None:
    empty = client.post("/v1/files", files={"file": ("a.jsonl", b"")}, data={"purpose": "fine-tune"})
    assert refused(empty) == ("file", "empty_file")
    assert refused(client.post("/v1/files", files={"other": b"x"}, data={"purpose": "fine-tune"}))[0] == "file"
    assert refused(client.post("/v1/files", json={"purpose": "fine-tune"}))[0] == "file"


def test_what_a_killed_server_left_half_is_never_seen_and_goes(client: TestClient, home: Path) -> None:
    upload(client)
    old, new = (home / "uploads" / f".file-{name}.part" for name in ("old", "new"))
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    assert len(client.get("/v1/files").json()["data"]) == 1
    upload(client)
    assert not old.exists()
    assert new.exists()  # a client may still be sending it


@contextmanager
def limited(home: Path, **more: int) -> Iterator[TestClient]:
    settings = Settings.model_validate({"home": home, "embedded_runner": False, "upload_bytes": 2**21} | more)
    with service(settings) as client:
        yield client


def send(client: TestClient, size: int) -> Any:
    return client.post("/v1/files", files={"file": ("a.jsonl", b"x" * size)}, data={"purpose": "fine-tune"})


@pytest.mark.parametrize("size", [601, 2**20])  # told by the file itself, and by the request before it comes
def test_an_owners_quota_is_a_413_that_leaves_nothing(home: Path, size: int) -> None:
    with limited(home, owner_disk_bytes=1000) as client:
        first = send(client, 400).json()["id"]
        answer = send(client, size)
        assert refused(answer, 413) == (None, "disk_quota_exceeded")
        assert "400 of the 1,000 bytes" in answer.json()["error"]["message"]
        assert [path.stem for path in (home / "uploads").iterdir()] == [first]
        assert send(client, 600).status_code == 200
        assert refused(send(client, 1), 413) == (None, "disk_quota_exceeded")
        client.delete(f"/v1/files/{first}")
        assert send(client, 400).status_code == 200


def test_several_at_once_keep_the_quota_together(home: Path) -> None:
    with limited(home, owner_disk_bytes=1000) as client:
        with ThreadPoolExecutor(8) as pool:
            statuses = sorted(answer.status_code for answer in pool.map(lambda _: send(client, 400), range(8)))
        assert statuses == [200] * 2 + [413] * 6
        assert len(list((home / "uploads").iterdir())) == 2


def test_jobs_count_beside_files(home: Path) -> None:
    with limited(home, owner_disk_bytes=1000) as client:
        job = create(client, training_file=send(client, 400).json()["id"])
        folder = home / "jobs" / job["id"]
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x" * 500)
        assert refused(send(client, 101), 413) == (None, "disk_quota_exceeded")
        assert send(client, 100).status_code == 200


def test_a_nearly_full_disk_is_a_503_to_be_tried_again(home: Path) -> None:
    with limited(home, free_disk_bytes=2**62) as client:
        answer = send(client, 2**20)
        assert refused(answer, 503) == (None, "disk_low")
        assert answer.headers["retry-after"] == "60"
        assert list((home / "uploads").iterdir()) == []

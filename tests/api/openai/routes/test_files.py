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

from onyx import fs
from onyx.settings import Settings
from tests.api.openai.helpers import CHAT, create, refused, upload
from tests.api.service import service


def test_a_file_is_uploaded_read_and_deleted(client: TestClient, home: Path) -> None:
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


def test_the_directory_is_synced_in_a_thread_and_not_on_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def sync(folder: Path) -> None:
        with pytest.raises(RuntimeError):  # in a thread, not on the event loop
            asyncio.get_running_loop()
        synced.append(folder)

    monkeypatch.setattr(fs, "sync_directory", sync)
    upload(client)
    assert [folder.name for folder in synced] == ["uploads"]


def test_a_page_continues_after_the_last_id(client: TestClient) -> None:
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
def test_wrong_fields_are_named_and_no_file_is_left(
    client: TestClient, home: Path, fields: dict[str, str], param: str
) -> None:
    response = client.post("/v1/files", files={"file": ("a.jsonl", CHAT)}, data=fields)
    assert refused(response)[0] == param
    assert list((home / "uploads").iterdir()) == []


def test_a_file_that_is_too_large_is_refused_and_not_left(client: TestClient, home: Path) -> None:
    response = client.post("/v1/files", files={"file": ("a.jsonl", b"x" * 5000)}, data={"purpose": "fine-tune"})
    assert refused(response, 413)[1] == "too_large"
    assert list((home / "uploads").iterdir()) == []


def test_the_default_upload_limit() -> None:
    assert Settings().upload_bytes == 512 * 2**20


def test_an_empty_file_or_none_is_refused(client: TestClient) -> None:
    empty = client.post("/v1/files", files={"file": ("a.jsonl", b"")}, data={"purpose": "fine-tune"})
    assert refused(empty) == ("file", "empty_file")
    assert refused(client.post("/v1/files", files={"other": b"x"}, data={"purpose": "fine-tune"}))[0] == "file"
    assert refused(client.post("/v1/files", json={"purpose": "fine-tune"}))[0] == "file"


def test_partial_uploads_of_a_killed_server_are_not_listed_and_are_removed(client: TestClient, home: Path) -> None:
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


@pytest.mark.parametrize("size", [601, 2**20])  # known when the file has been received, and from its Content-Length
def test_a_used_up_disk_quota_is_a_413_and_no_file_is_left(home: Path, size: int) -> None:
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


def test_concurrent_uploads_keep_the_quota(home: Path) -> None:
    with limited(home, owner_disk_bytes=1000) as client:
        with ThreadPoolExecutor(8) as pool:
            statuses = sorted(answer.status_code for answer in pool.map(lambda _: send(client, 400), range(8)))
        assert statuses == [200] * 2 + [413] * 6
        assert len(list((home / "uploads").iterdir())) == 2


def test_files_of_jobs_count_towards_the_quota(home: Path) -> None:
    with limited(home, owner_disk_bytes=1000) as client:
        job = create(client, training_file=send(client, 400).json()["id"])
        folder = home / "jobs" / job["id"]
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"x" * 500)
        assert refused(send(client, 101), 413) == (None, "disk_quota_exceeded")
        assert send(client, 100).status_code == 200


def test_a_nearly_full_disk_is_a_503_with_retry_after(home: Path) -> None:
    with limited(home, free_disk_bytes=2**62) as client:
        answer = send(client, 2**20)
        assert refused(answer, 503) == (None, "disk_low")
        assert answer.headers["retry-after"] == "60"
        assert list((home / "uploads").iterdir()) == []

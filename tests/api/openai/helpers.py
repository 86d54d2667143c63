"""Requests and checks that many tests of this API share."""

from typing import Any

from fastapi.testclient import TestClient

CHAT = b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}\n'


def upload(client: TestClient, data: bytes = CHAT * 10, name: str = "train.jsonl", **fields: str) -> Any:
    """Upload a file, and return the file object."""
    response = client.post("/v1/files", files={"file": (name, data)}, data={"purpose": "fine-tune"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def create(client: TestClient, **body: Any) -> Any:
    """Create a job, and return the job object."""
    given = {"model": "onyx/tiny"} | body
    if "training_file" not in given:
        given["training_file"] = upload(client)["id"]
    response = client.post("/v1/fine_tuning/jobs", json=given)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: Any, status: int = 400) -> tuple[str | None, str | None]:
    """The param and code of an error answer, after checking its shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert response.headers["x-request-id"]
    return error["param"], error["code"]

"""Errors as answers: their status, and sentences that name the mistake."""

import json

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.testclient import TestClient

from onyx.api.http.errors import MOST_PROBLEMS, ApiError, translate
from onyx.jobs import errors
from tests.api.service import AT, BODY

REQUEST = Request({"type": "http", "headers": []})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.JobNotFoundError("x" * 1000), 404),
        (errors.NotAllowedError("no"), 400),
        (errors.IdempotencyConflictError("used"), 400),
        (errors.QuotaExceededError("many"), 429),
        (errors.BadValueError("bad"), 422),
        (errors.StoreUnavailableError("postgresql://user:secret@db"), 503),
    ],
)
def test_each_error_of_jobs_has_its_status(error: Exception, status: int) -> None:
    answer = translate(error, REQUEST)
    assert answer is not None
    assert answer.status_code == status
    assert "secret" not in answer.message
    assert len(answer.message) < 300
    if status in (429, 503):
        assert answer.headers is not None
        assert int(answer.headers["Retry-After"]) > 0


def test_an_unexpected_exception_is_not_translated() -> None:
    assert translate(KeyError("x"), REQUEST) is None
    assert translate(ApiError(418, "tea"), REQUEST) is not None
    parsing = translate(HTTPException(400, "There was an error parsing the body"), REQUEST)
    assert parsing is not None
    assert parsing.status_code == 400


def test_many_mistakes_are_counted_and_not_repeated() -> None:
    mistakes = [{"loc": ("body", "x" * 1000, n), "msg": "y" * 10_000} for n in range(1000)]
    answer = translate(RequestValidationError(mistakes), REQUEST)
    assert answer is not None
    assert f"and {1000 - MOST_PROBLEMS} more" in answer.message
    assert len(answer.message) < 500 * MOST_PROBLEMS


def test_a_missing_content_type_is_named(client: TestClient) -> None:
    answer = client.post(f"{AT}/config", content=b"{}")
    assert answer.status_code == 422
    assert "Content-Type: application/json" in answer.json()["detail"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1", b'"x"', b"null", b"\xff\xfe", b"{'a': 1}"])
def test_an_invalid_body_is_a_sentence(client: TestClient, text: bytes) -> None:
    answer = client.post(f"{AT}/training/with-accumulation", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str)


@pytest.mark.parametrize("field", ["epochz", "trust_remote_code", "output_dir", "__class__"])
def test_unknown_fields_are_refused_by_name(client: TestClient, field: str) -> None:
    for body in (BODY | {field: 1}, BODY | {"training_config": {field: 1}}, BODY | {"dataset_config": {field: 1}}):
        answer = client.post(
            f"{AT}/training/with-accumulation", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 422
        assert field in answer.json()["detail"]

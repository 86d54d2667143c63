"""Errors in OpenAI's shape; its client turns them into exceptions with code and param."""

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from onyx.api.http.errors import ApiError, not_allowed

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Why the request failed, and what to change."""

    error: ErrorBody


def error_answer(error: ApiError) -> ErrorAnswer:
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error")
    return ErrorAnswer(error=ErrorBody(message=error.message, type=kind, param=error.param, code=error.code))


def status_of(error: ApiError) -> int:
    """400 instead of 422: OpenAI answers so, and code written for it catches BadRequestError."""
    return HTTPStatus.BAD_REQUEST if error.status_code == HTTPStatus.UNPROCESSABLE_ENTITY else error.status_code


def missing(what: str, name: str, param: str) -> ApiError:
    """404, with the same message for what does not exist and for what belongs to another owner."""
    return ApiError(404, f"there is no {what} {name[:80]!r}: list those you have", code="not_found", param=param)


def model_not_found(name: str) -> ApiError:
    message = f"there is no model {name[:200]!r} here: GET /models lists the models that exist"
    return ApiError(404, message, code="model_not_found", param="model")


def invalid(message: str, param: str, *, code: str = "invalid_value") -> ApiError:
    return not_allowed(message, param=param, code=code)


_DESCRIPTIONS: dict[int | str, str] = {
    400: "The request is invalid, or not possible in the current state",
    401: "The request needs an API key",
    403: "The caller may not do this",
    404: "It does not exist, or belongs to another owner",
    413: "The request is too large, or a disk quota is used up",
    429: "Too many requests, or too many open jobs",
    503: "Temporarily unavailable: try again",
    "4XX": "Any other invalid request",
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text} for status, text in _DESCRIPTIONS.items()
}
"""Every error that a route may answer, for the OpenAPI schema."""

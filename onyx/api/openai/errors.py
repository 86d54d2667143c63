"""Errors in OpenAI's shape, which its client turns into exceptions with code and param."""

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
    """Why not, and what to change."""

    error: ErrorBody


def error_answer(error: ApiError) -> ErrorAnswer:
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error")
    return ErrorAnswer(error=ErrorBody(message=error.message, type=kind, param=error.param, code=error.code))


def status_of(error: ApiError) -> int:
    """400 for every request that has the wrong shape, as there: code that was written for OpenAI catches that one."""
    return HTTPStatus.BAD_REQUEST if error.status_code == HTTPStatus.UNPROCESSABLE_ENTITY else error.status_code


def missing(what: str, name: str, param: str) -> ApiError:
    """404; the same words for what is not there and for what is somebody else's."""
    return ApiError(404, f"there is no {what} {name[:80]!r}: list those you have", code="not_found", param=param)


def no_model(name: str) -> ApiError:
    message = f"there is no model {name[:200]!r} here: GET /models lists those that there are"
    return ApiError(404, message, code="model_not_found", param="model")


def wrong(message: str, param: str, *, code: str = "invalid_value") -> ApiError:
    return not_allowed(message, param=param, code=code)


_WORDS: dict[int | str, str] = {
    400: "The request has the wrong shape, or cannot be done now",
    401: "An API key is needed",
    403: "Not for this caller",
    404: "There is no such thing, or it is somebody else's",
    413: "Too large",
    429: "Too often, or too many",
    503: "Try again in a moment",
    "4XX": "Anything else that is wrong with a request",
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": words} for status, words in _WORDS.items()
}
"""Every error that any route may answer."""

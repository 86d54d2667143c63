"""Errors as answers: a status and a sentence that says what the client can change."""

from collections.abc import Mapping
from http import HTTPStatus

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from onyx.jobs.errors import (
    BadValueError,
    DiskQuotaError,
    IdempotencyConflictError,
    JobNotFoundError,
    LowDiskError,
    NotAllowedError,
    QuotaExceededError,
    StoreUnavailableError,
    WrongHomeError,
)

RETRY_SECONDS = 5
"""Retry-After while the job store does not answer."""

MOST_PROBLEMS = 20
"""How many mistakes of one request are listed; the rest are only counted."""

MOST_CHARACTERS = 400
"""Length of one listed mistake, because it may repeat what the client sent."""


class ApiError(HTTPException):
    """An error answer. Each API has its own JSON shape for it: see `OnyxRoute.answer`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status_code=status, detail=message, headers=dict(headers or {}))
        self.message = message
        self.code = code or HTTPStatus(status).phrase.lower().replace(" ", "_")
        self.param = param


def not_found(what: str, name: str) -> ApiError:
    return ApiError(404, f"there is no {what} {name[:80]!r}: look at the list of those you have", code="not_found")


def not_allowed(message: str, *, param: str | None = None, code: str = "not_allowed") -> ApiError:
    """400: the request is valid, but cannot be done in this state."""
    return ApiError(400, message, code=code, param=param)


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """422: the request has the wrong shape, or a value out of range."""
    return ApiError(422, message, code=code, param=param)


def translate(error: Exception, request: Request) -> ApiError | None:
    """The answer to an exception; None for an unexpected one, which is a defect of Onyx."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error, request)
    if isinstance(error, JobNotFoundError):
        return not_found("job", error.job_id)
    if isinstance(error, NotAllowedError):
        return not_allowed(str(error))
    if isinstance(error, IdempotencyConflictError):
        return not_allowed(str(error), code="idempotency_conflict")
    if isinstance(error, QuotaExceededError):
        return ApiError(429, str(error), code="quota_exceeded", headers={"Retry-After": "60"})
    if isinstance(error, DiskQuotaError):
        return ApiError(413, str(error), code="disk_quota_exceeded")
    if isinstance(error, LowDiskError):
        return ApiError(503, str(error), code="disk_low", headers={"Retry-After": "60"})
    if isinstance(error, BadValueError):
        return invalid(str(error))
    if isinstance(error, StoreUnavailableError | WrongHomeError):
        headers = {"Retry-After": str(RETRY_SECONDS)}
        return ApiError(
            503, "the job store does not answer: try again in a moment", code="unavailable", headers=headers
        )
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    return None


def _invalid(error: RequestValidationError, request: Request) -> ApiError:
    kind = request.headers.get("content-type", "")
    whole = any(problem["loc"] in (("body",), ["body"]) for problem in error.errors())
    if whole and not kind.partition(";")[0].strip().endswith("json"):
        return invalid(
            f"the body was sent as {kind[:80] or 'an unknown type'}: "
            "send JSON and say so with the header Content-Type: application/json (curl --json does both)",
            code="content_type",
        )
    problems = [_problem(problem["loc"], problem["msg"], problem.get("ctx")) for problem in error.errors()]
    more = f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
    first = error.errors()[0]["loc"] if error.errors() else ()
    return invalid("; ".join(problems[:MOST_PROBLEMS]) + more, param=_place(first) or None)


def _problem(place: tuple[int | str, ...], message: str, context: Mapping[str, object] | None) -> str:
    if message == "JSON decode error" and context:
        return f"the body is no JSON: {context.get('error')} at character {place[-1]}"
    words = message.removeprefix("Value error, ")
    return f"{_place(place) or 'the request'}: {words}"[:MOST_CHARACTERS]


def _place(place: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in place[1:])[:200]

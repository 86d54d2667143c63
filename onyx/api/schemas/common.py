"""Base classes, field types and error responses that the other schemas share."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST = 1_000_000
"""Largest window, micro-batch and number of steps."""

Amount = Annotated[int, Field(ge=1, le=MOST)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")]
GpuIds = Annotated[list[Annotated[int, Field(ge=0, le=1023)]], Field(max_length=1024)]


class Body(BaseModel):
    """A request body. Refuses unknown fields, NaN, infinity, and strings in place of numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Answer(BaseModel):
    """An answer of Onyx."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())


class Problem(Answer):
    """An error: what is wrong and what to change."""

    detail: str


class Done(Answer):
    """Success without more to say."""

    success: bool = True
    training_id: str
    message: str


Json = dict[str, Any]

_PROBLEMS = {
    400: "It cannot be done now",
    401: "An API key is needed",
    403: "This caller may not do it",
    404: "Not found, or it belongs to another owner",
    408: "The body came too slowly",
    413: "Too large",
    422: "Wrong shape, or a value out of range",
    429: "Too many requests, or a quota is used up",
    503: "Unavailable for the moment: retry after a few seconds",
}
_ALWAYS = (401, 403, 429, 503)
WITH_BODY = (400, 408, 413, 422)
"""Errors of routes that take a body."""


def problems(*more: int) -> dict[int | str, dict[str, Any]]:
    """Error responses for a route's declaration: those of every route, and `more`."""
    return {status: {"model": Problem, "description": _PROBLEMS[status]} for status in sorted({*_ALWAYS, *more})}

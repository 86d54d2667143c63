"""What several bodies and answers share."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST = 1_000_000
"""No window, micro-batch or number of steps is larger."""

Amount = Annotated[int, Field(ge=1, le=MOST)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")]
GpuIds = Annotated[list[Annotated[int, Field(ge=0, le=1023)]], Field(max_length=1024)]


class Body(BaseModel):
    """What a caller sends. Words that nobody knows are refused, and so are NaN, infinity and "4" for 4."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Answer(BaseModel):
    """What Onyx sends back."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())


class Problem(Answer):
    """Why not, and what to change."""

    detail: str


class Done(Answer):
    """Something was done."""

    success: bool = True
    training_id: str
    message: str


Json = dict[str, Any]

_PROBLEMS = {
    400: "It cannot be done",
    401: "An API key is needed",
    403: "Not for this caller",
    404: "There is no such thing, or it is somebody else's",
    408: "The body came too slowly",
    413: "Too large",
    422: "The wrong shape, or out of range",
    429: "Too often, or too many",
    503: "Try again in a moment",
}
_ALWAYS = (401, 403, 429, 503)
WITH_BODY = (400, 408, 413, 422)
"""What a route that takes a body may answer besides."""


def problems(*more: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route may answer, for its declaration: those of every route, and more."""
    return {status: {"model": Problem, "description": _PROBLEMS[status]} for status in sorted({*_ALWAYS, *more})}

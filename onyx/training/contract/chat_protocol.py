"""Trying a model: what its process is told, and what it says. Lines of JSON over one socket. Needs no torch."""

from typing import Any, Literal

from pydantic import Field

from onyx.training.contract.attempt import Failure
from onyx.training.contract.prepared import Roots
from onyx.training.contract.spec import Frozen

SOCKET = "socket"
"""Its name in the folder that the process is given."""

STOP = b"stop\n"
"""Said while an answer is being written: nobody wants the rest."""


NO_MEMORY = "no_memory"
"""The code of a failure for want of memory, before an answer or in the middle of it."""


class LoadRequest(Frozen):
    """The model to load: the first line that the process reads."""

    model: str
    """As a job's spec would name it."""

    roots: Roots
    memory: int
    """Bytes that may be taken in all."""


class GenerateRequest(Frozen):
    """Every further line that it reads."""

    messages: list[dict[str, Any]]
    """As chat templates expect them."""

    max_tokens: int = Field(ge=1)
    exact_tokens: bool = False
    """Whether somebody asked for so many: then fewer, because the context is full, is an error."""

    temperature: float = Field(default=1.0, ge=0)
    """0: always the likeliest token."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    threads: int = Field(default=1, ge=1)


class Reply(Frozen):
    """A line that it writes. The one with `end`, `failure` or `ready` is the last for now."""

    text: str = ""
    """The next piece of the answer."""

    ready: bool = False
    """The model is loaded."""

    end: "GenerationEnd | None" = None
    failure: Failure | None = None
    """Why there is no answer, or no more of it."""

    @property
    def last(self) -> bool:
        return self.ready or self.end is not None or self.failure is not None


class GenerationEnd(Frozen):
    """How an answer ended."""

    reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    """All that the model wrote, with the token that ends an answer."""


Reply.model_rebuild()

"""The protocol of the chat process, which holds one model: lines of JSON over one socket. Needs no torch."""

from typing import Any, Literal

from pydantic import Field

from onyx.training.contract.attempt import Failure
from onyx.training.contract.prepared import Roots
from onyx.training.contract.spec import Frozen

SOCKET = "socket"
"""The socket's name in the folder that the process gets as its argument."""

STOP = b"stop\n"
"""Sent while an answer is generated: the client does not want the rest."""

NO_MEMORY = "no_memory"
"""The code of a failure because memory ran out, before an answer or in the middle of it."""


class LoadRequest(Frozen):
    """The model to load. The first line that the process reads."""

    model: str
    """Its name, as in a job's spec."""

    roots: Roots
    memory: int
    """Bytes that the process may use in all."""


class GenerateRequest(Frozen):
    """A chat to answer. Every further line that the process reads, but for STOP."""

    messages: list[dict[str, Any]]
    """As chat templates expect them."""

    max_tokens: int = Field(ge=1)
    exact_tokens: bool = False
    """Whether the client chose max_tokens. Then it is an error when the context has no room for so many."""

    temperature: float = Field(default=1.0, ge=0)
    """0: always the most likely token."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    threads: int = Field(default=1, ge=1)


class Reply(Frozen):
    """A line that the process writes. One with `end`, `failure` or `ready` ends the answer to a request."""

    text: str = ""
    """The next piece of the answer."""

    ready: bool = False
    """The model is loaded."""

    end: "GenerationEnd | None" = None
    failure: Failure | None = None
    """Why there is no answer, or why it breaks off."""

    @property
    def last(self) -> bool:
        return self.ready or self.end is not None or self.failure is not None


class GenerationEnd(Frozen):
    """Why an answer ended, and its size."""

    reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    """All tokens that the model generated, the one that ends the answer included."""


Reply.model_rebuild()

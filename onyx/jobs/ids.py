"""Ids, all made by the server, so that no id is text from a user or a path out of its directory."""

import hashlib
import re
import secrets
from enum import StrEnum

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_SHORT_TAIL = 10
_LONG_TAIL = 24  # as long as OpenAI's
_PATTERN = re.compile(r"(?:accumulation|large_batch)_[0-9]{1,12}_[0-9a-z]{10}|(?:ftjob|file|runner|key)-[0-9a-z]{24}")


class JobKind(StrEnum):
    """The endpoint that created a job. The id begins with it."""

    ACCUMULATION = "accumulation"
    """POST /training/with-accumulation."""

    LARGE_BATCH = "large_batch"
    """POST /training/large-batch."""

    FINE_TUNING = "ftjob"
    """POST /v1/fine_tuning/jobs."""


def make_job_id(kind: JobKind, now: float) -> str:
    """A new id. `now`, in seconds since the epoch, is for readers; the random tail alone makes it unique."""
    if kind is JobKind.FINE_TUNING:
        return f"{kind}-{_tail(_LONG_TAIL)}"
    return f"{kind}_{int(now)}_{_tail(_SHORT_TAIL)}"


def make_config_id(now: float) -> str:
    """The id of a stored config: it has the documented form of a training id."""
    return make_job_id(JobKind.ACCUMULATION, now)


def make_runner_id() -> str:
    """A new id for each runner process."""
    return f"runner-{_tail(_LONG_TAIL)}"


def make_file_id() -> str:
    """A new id for an uploaded file."""
    return f"file-{_tail(_LONG_TAIL)}"


def result_file_id(job_id: str) -> str:
    """The id of the file with a job's metrics: always the same for one job."""
    return f"file-{hashlib.sha256(job_id.encode()).hexdigest()[:_LONG_TAIL]}"


def make_webhook_id() -> str:
    """A new id for a webhook, the same at each try."""
    return f"evt_{_tail(_LONG_TAIL)}"


def make_key_id() -> str:
    """A new id for an API key."""
    return f"key-{_tail(_LONG_TAIL)}"


def is_id(text: str) -> bool:
    """Whether the text has the form of an id. Other text is never looked up."""
    return _PATTERN.fullmatch(text) is not None


def _tail(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))

"""A job's status, and the table of the changes that are allowed."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from onyx.jobs.errors import NotAllowedError


class JobStatus(StrEnum):
    """The status of a job."""

    VALIDATING = "validating"
    """Created; its model and data are being checked and prepared. Holds no device."""

    QUEUED = "queued"
    """Prepared and planned; waits for devices."""

    RUNNING = "running"
    """An attempt holds its devices."""

    PAUSED = "paused"
    """Stopped by its owner; continues from its last checkpoint when resumed."""

    SUCCEEDED = "succeeded"
    """Finished: the model is published."""

    FAILED = "failed"
    """Ended by a mistake in the request or data, a limit, or too many lost attempts; `error` says which."""

    CANCELLED = "cancelled"
    """Ended by its owner."""

    @property
    def terminal(self) -> bool:
        """Whether the job has ended: its status never changes again."""
        return not ALLOWED[self]


_S = JobStatus

ALLOWED: Mapping[JobStatus, frozenset[JobStatus]] = MappingProxyType(
    {
        _S.VALIDATING: frozenset({_S.QUEUED, _S.PAUSED, _S.FAILED, _S.CANCELLED}),
        # Back to validating when the devices of its plan are gone: it is planned anew.
        _S.QUEUED: frozenset({_S.VALIDATING, _S.RUNNING, _S.PAUSED, _S.CANCELLED}),
        _S.RUNNING: frozenset({_S.QUEUED, _S.PAUSED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLED}),
        # Back to validating when it was paused before it was prepared.
        _S.PAUSED: frozenset({_S.VALIDATING, _S.QUEUED, _S.CANCELLED}),
        _S.SUCCEEDED: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)

TERMINAL = frozenset(status for status in JobStatus if status.terminal)
OPEN = frozenset(JobStatus) - TERMINAL


class Outcome(StrEnum):
    """How an attempt ended."""

    PREPARED = "prepared"
    """Model and data are ready."""

    SUCCEEDED = "succeeded"
    """The model is published."""

    FAILED = "failed"
    """The job cannot work as requested."""

    LOST = "lost"
    """A rank, helper or runner died. Counts towards the limit of retries."""

    MEMORY = "memory"
    """Out of memory, and a retry in place did not help. Counts too; the next attempt gets half the memory budget."""

    SAVED = "saved"
    """Stopped after saving, through no fault of the job."""

    PAUSED = "paused"
    """Stopped because the owner paused the job."""

    CANCELLED = "cancelled"
    """Stopped because the owner cancelled the job."""


class StopRequest(StrEnum):
    """A running job is to stop: its ranks save (pause) or not (cancel)."""

    PAUSE = "pause"
    CANCEL = "cancel"


def check_change(job_id: str, old: JobStatus, new: JobStatus) -> None:
    """Raise NotAllowedError for a change that ALLOWED does not have."""
    if new not in ALLOWED[old]:
        final = "; a finished job never changes, create a new one" if old.terminal else ""
        raise NotAllowedError(f"{job_id} is {old} and cannot become {new}{final}")

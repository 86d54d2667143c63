"""A job's status and the one table that says which change is allowed."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from onyx.jobs.errors import NotAllowedError


class JobStatus(StrEnum):
    """Where a job stands."""

    VALIDATING = "validating"
    """Created; its model and data are being looked at. Holds no device."""

    QUEUED = "queued"
    """Prepared and planned; waits for devices."""

    RUNNING = "running"
    """An attempt holds its devices."""

    PAUSED = "paused"
    """Stopped by its owner; goes on from its last checkpoint when resumed."""

    SUCCEEDED = "succeeded"
    """Finished: the model is published."""

    FAILED = "failed"
    """Ended by a user's mistake, a limit, or too many lost attempts; `error` says which."""

    CANCELLED = "cancelled"
    """Ended by its owner."""

    @property
    def terminal(self) -> bool:
        """Whether nothing will ever change any more."""
        return not ALLOWED[self]


_S = JobStatus

ALLOWED: Mapping[JobStatus, frozenset[JobStatus]] = MappingProxyType(
    {
        _S.VALIDATING: frozenset({_S.QUEUED, _S.PAUSED, _S.FAILED, _S.CANCELLED}),
        # A plan for devices that are gone is made anew.
        _S.QUEUED: frozenset({_S.VALIDATING, _S.RUNNING, _S.PAUSED, _S.CANCELLED}),
        _S.RUNNING: frozenset({_S.QUEUED, _S.PAUSED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLED}),
        # A job that was paused before it was prepared goes back to where it was.
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
    """The job cannot work as it was asked for."""

    LOST = "lost"
    """A rank, helper or runner died. Counts towards the limit of retries."""

    MEMORY = "memory"
    """Out of memory where it could not be retried in place. Counts too; the next attempt takes half the budget."""

    SAVED = "saved"
    """Stopped after saving, through no fault of the job."""

    PAUSED = "paused"
    """Stopped because the owner asked for a pause."""

    CANCELLED = "cancelled"
    """Stopped because the owner cancelled."""


class StopRequest(StrEnum):
    """What an owner wants of a job that is running."""

    PAUSE = "pause"
    CANCEL = "cancel"


def check(job_id: str, old: JobStatus, new: JobStatus) -> None:
    """Refuse a change that the table does not have."""
    if new not in ALLOWED[old]:
        final = "; a finished job never changes" if old.terminal else ""
        raise NotAllowedError(f"{job_id} is {old} and cannot become {new}{final}")

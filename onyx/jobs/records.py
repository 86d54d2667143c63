"""What the store gives out about a job beside the job itself: attempts, runners, events, numbers, stored configs."""

from dataclasses import dataclass, field
from typing import Any

from onyx.jobs.process_identity import ProcessIdentity
from onyx.jobs.status import JobStatus, Outcome


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One lease of a job by a runner, for people to look at."""

    number: int
    """1, 2, 3…"""

    runner_id: str
    """Who held it."""

    host: str
    """Where."""

    phase: JobStatus
    """validating or running."""

    devices: tuple[str, ...]
    """Names."""

    claimed_at: float
    """When it began."""

    lease_until: float
    """When it lapses or lapsed."""

    ended_at: float | None
    """None while it is live."""

    outcome: Outcome | None
    """None while it is live."""


@dataclass(frozen=True, kw_only=True)
class RunnerRecord:
    """A runner and how well it reaches the store."""

    id: str
    """Made by the server, one per process."""

    holder: ProcessIdentity
    """The process."""

    reached_since: float
    """Since when it has reached the store without a gap."""

    reached_at: float
    """When it last did."""

    may_expire: bool
    """Whether that is long enough to judge others."""


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """Something that happened to a job."""

    job_id: str
    """The job."""

    seq: int
    """1, 2, 3… without a gap, in the order in which readers could first see them."""

    attempt: int | None
    """The attempt it belongs to, if any."""

    line: int | None
    """Its line in the attempt's events.jsonl; None for what the store itself says."""

    time: float
    """When it happened."""

    kind: str
    """One of the kinds of events.jsonl, or "status"."""

    level: str
    """info, warn or error."""

    message: str
    """For people."""

    data: dict[str, Any] = field(default_factory=dict)
    """For programs."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The numbers of one update, by the latest attempt that made it."""

    update: int
    """Which update."""

    attempt: int
    """Which attempt."""

    time: float
    """When."""

    data: dict[str, Any]
    """The numbers."""


@dataclass(frozen=True, kw_only=True)
class StoredConfig:
    """A config kept for later jobs."""

    id: str
    """Made by the server."""

    owner: str
    """Who may use it."""

    config: dict[str, Any]
    """As the API checked it."""

    created_at: float
    """When it was first stored."""

    updated_at: float
    """When it was last changed."""

"""Records that the store returns beside jobs: attempts, runners, events, metrics, stored configs."""

from dataclasses import dataclass, field
from typing import Any

from onyx.jobs.process_identity import ProcessIdentity
from onyx.jobs.status import JobStatus, Outcome


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One attempt: a lease of a job by a runner."""

    number: int
    """1, 2, 3…"""

    runner_id: str
    """The runner that held it."""

    host: str
    """The runner's host."""

    phase: JobStatus
    """`validating` (prepares) or `running` (trains)."""

    devices: tuple[str, ...]
    """Names of its devices."""

    claimed_at: float
    """When it began."""

    lease_until: float
    """When its lease ends or ended."""

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
    """It has reached the store without a gap since then."""

    reached_at: float
    """When it last reached the store."""

    may_expire: bool
    """Whether that is long enough to expire the leases of other runners."""


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
    """Its line in the attempt's events.jsonl; None for events of the store itself."""

    time: float
    """When it happened."""

    kind: str
    """One of the kinds of events.jsonl, or "status"."""

    level: str
    """info, warn or error."""

    message: str
    """Text for readers."""

    data: dict[str, Any] = field(default_factory=dict)
    """The same for programs."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The metrics of one update, from the latest attempt that made it."""

    update: int
    """Number of the update."""

    attempt: int
    """The attempt that made it."""

    time: float
    """When it was made."""

    data: dict[str, Any]
    """The metrics by name."""


@dataclass(frozen=True, kw_only=True)
class StoredConfig:
    """A config kept for later jobs."""

    id: str
    """Made by the server."""

    owner: str
    """Who may use it."""

    config: dict[str, Any]
    """As the API has validated it."""

    created_at: float
    """When it was first stored."""

    updated_at: float
    """When it was last changed."""

"""A job and what belongs to it: progress, config changes, leases, devices. All values are immutable."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, model_validator

from onyx.jobs.ids import JobKind
from onyx.jobs.status import JobStatus, StopRequest
from onyx.training.contract.attempt import Failure, Result
from onyx.training.contract.spec import Frozen, JobSpec


class RunnerDevice(Frozen):
    """A device that a runner has."""

    name: str = Field(min_length=1, max_length=255)
    """Unique on its host and the same after a restart: a GPU's uuid, or "cpu:0"."""

    kind: str = Field(min_length=1, max_length=255)
    """Devices of one kind are interchangeable: they compute the same bits."""


class DeviceNeed(Frozen):
    """The device that one rank of a plan needs."""

    kind: str = Field(min_length=1, max_length=255)
    """The kind the plan was made for."""

    name: str | None = None
    """One particular device, if the request named it."""


class JobProgress(Frozen):
    """How far a job is, by its last report."""

    update: int = Field(ge=0)
    """Updates done."""

    total_updates: int | None = None
    """Updates that the whole job will take, as far as known."""

    epoch: float = 0.0
    """Passes over the data, with the fraction of the current one."""

    samples: int = 0
    """Samples trained on."""

    trained_tokens: int = 0
    """Label tokens trained on."""

    loss: float | None = None
    """Of the last update."""

    learning_rate: float | None = None
    """Of the last update."""

    seconds_left: float | None = None
    """An estimate."""

    percent: float | None = None
    """Of all samples."""

    tokens_per_second: float | None = None
    """Of the last update."""

    micro_batch: int | None = None
    """Samples of the last update's largest micro-batch."""

    memory_bytes: int | None = None
    """The most memory that a rank has held."""

    planned_bytes: int | None = None
    """What the plan expected for it."""

    mean_gradient_norm: float | None = None
    """Mean over the updates that were reported."""

    norms: int = 0
    """How many updates that mean covers."""


class ConfigChange(Frozen):
    """What may change while a job runs. A field that is not given (see `model_fields_set`) stays as it is."""

    accumulation_steps: Annotated[int, Field(ge=1)] | None = None
    """From the next window on; None changes nothing."""

    gradient_clipping: Annotated[float, Field(gt=0)] | None = None
    """From the next window on; None, where given, means no clipping."""

    @model_validator(mode="after")
    def _something_given(self) -> "ConfigChange":
        if not self.given():
            raise ValueError("give accumulation_steps, gradient_clipping or both")
        return self

    def given(self) -> dict[str, int | float | None]:
        """The fields that change."""
        fields = self.model_dump(exclude_unset=True)
        return {name: value for name, value in fields.items() if (name, value) != ("accumulation_steps", None)}

    def over(self, earlier: "ConfigChange | None") -> "ConfigChange":
        """This change on top of an earlier one."""
        return ConfigChange.model_validate((earlier.given() if earlier else {}) | self.given())


@dataclass(frozen=True, kw_only=True)
class ConfigRequest:
    """All config changes of a job so far, merged."""

    seq: int
    """Rises with every change; a runner that has passed this number to its ranks has nothing to do."""

    change: ConfigChange
    """Only the fields that were changed at least once are set."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to write about a job. Valid until another runner takes the job, whatever the clock says."""

    job_id: str
    """The job."""

    attempt: int
    """The fencing token: it rises with every claim."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as the store has it."""

    id: str
    """Made by the server."""

    owner: str
    """Who may see and change it."""

    kind: JobKind
    """The endpoint that created it."""

    status: JobStatus
    """Its status."""

    spec: JobSpec
    """What was requested. Samples that came inside of the request are left out: their lists are empty."""

    created_at: float
    """By the database's clock, in seconds since the epoch, like every time here."""

    queued_at: float | None
    """When it first was ready to run."""

    started_at: float | None
    """When it first got devices."""

    finished_at: float | None
    """When it reached a terminal status."""

    running_seconds: float
    """Time on devices, of all attempts that have ended."""

    attempt: int
    """Number of the last attempt; 0 before the first."""

    lost_attempts: int
    """Attempts lost since the last new checkpoint."""

    memory_losses: int
    """Attempts that ended out of memory: the memory budget is halved so many times."""

    checkpoint_update: int | None
    """The update of its furthest checkpoint."""

    last_event: int
    """Sequence number of its newest event."""

    request: StopRequest | None
    """A pause or cancellation that its runner has not carried out yet."""

    config: ConfigRequest | None
    """The changes of its config so far."""

    needs: tuple[DeviceNeed, ...]
    """One per rank; empty until it is prepared."""

    prepared: dict[str, Any] | None
    """The result of preparing and the plan, as JSON that the store does not read."""

    progress: JobProgress | None
    """Its last report."""

    progress_at: float | None
    """When that was."""

    result: Result | None
    """Set when it has succeeded."""

    error: Failure | None
    """Set when it has failed."""


@dataclass(frozen=True, kw_only=True)
class ClaimedJob:
    """A job that a runner has claimed."""

    job: Job
    """The job at the time of the claim."""

    spec: JobSpec
    """With every sample."""

    lease: Lease
    """Passed with every write."""

    lease_until: float
    """When another runner may take it, unless a heartbeat renews the lease."""

    devices: tuple[RunnerDevice, ...] = ()
    """One per rank, in rank order; empty while it is being prepared."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The store's answer to a heartbeat."""

    lease_until: float
    """The lease's new end."""

    request: StopRequest | None
    """A pause or cancellation that the owner wants."""

    config: ConfigRequest | None
    """The changes of its config so far."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some jobs of a longer list, newest first."""

    jobs: tuple[Job, ...]
    """In order."""

    more: bool
    """Whether there are further ones after the last."""

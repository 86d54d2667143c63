"""What owners and runners say to each other through the store: values that cannot change."""

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
    """Devices of one kind can stand in for each other without changing the bits."""


class DeviceNeed(Frozen):
    """What one rank of a plan runs on."""

    kind: str = Field(min_length=1, max_length=255)
    """The kind the plan was made for."""

    name: str | None = None
    """One particular device, where the user asked for it."""


class JobProgress(Frozen):
    """How far a job is, as of its last report."""

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
    """The most that a rank has held,"""

    planned_bytes: int | None = None
    """and what the plan expected."""

    mean_gradient_norm: float | None = None
    """Over the updates that the store heard of,"""

    norms: int = 0
    """and how many those were."""


class ConfigChange(Frozen):
    """What may change while a job runs. A field that is not given stays as it is (`model_fields_set` tells)."""

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

    def over(self, former: "ConfigChange | None") -> "ConfigChange":
        """This change on top of a former one."""
        return ConfigChange.model_validate((former.given() if former else {}) | self.given())


@dataclass(frozen=True, kw_only=True)
class ConfigRequest:
    """All live changes of a job so far, as one."""

    seq: int
    """Rises with every change; a runner that has handed over this number has nothing to do."""

    change: ConfigChange
    """Only the fields that were ever changed are set."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to write about a job. Valid until another holds it, whatever the clock says."""

    job_id: str
    """The job."""

    attempt: int
    """The fencing token: rises with every claim."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as the store has it."""

    id: str
    """Made by the server."""

    owner: str
    """Who may see and change it."""

    kind: JobKind
    """Which way it was asked for."""

    status: JobStatus
    """Where it stands."""

    spec: JobSpec
    """What was asked for, with samples that came inside of the request left out (empty lists stand for them)."""

    created_at: float
    """Database's clock, seconds since the epoch, like every time here."""

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
    """Attempts that ended out of memory: the budget is halved so many times."""

    checkpoint_update: int | None
    """The update of its furthest checkpoint."""

    last_event: int
    """Sequence number of its newest event."""

    request: StopRequest | None
    """What its owner wants and its runner has not done yet."""

    config: ConfigRequest | None
    """Live changes of the config."""

    needs: tuple[DeviceNeed, ...]
    """One per rank; empty until it is prepared."""

    prepared: dict[str, Any] | None
    """What preparing found and the plan, as JSON; the store does not look into it."""

    progress: JobProgress | None
    """Its last report."""

    progress_at: float | None
    """When that was."""

    result: Result | None
    """When it succeeded."""

    error: Failure | None
    """When it failed."""


@dataclass(frozen=True, kw_only=True)
class ClaimedJob:
    """A job in the hands of a runner."""

    job: Job
    """As of the claim."""

    spec: JobSpec
    """With every sample."""

    lease: Lease
    """To be shown with every write."""

    lease_until: float
    """When others may take it, unless a heartbeat comes first."""

    devices: tuple[RunnerDevice, ...] = ()
    """One per rank, in rank order; empty while it is being prepared."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """What a runner hears in return."""

    lease_until: float
    """The lease's new end."""

    request: StopRequest | None
    """What the owner wants: pause or cancel."""

    config: ConfigRequest | None
    """Live changes of the config."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some jobs of a longer list, newest first."""

    jobs: tuple[Job, ...]
    """In order."""

    more: bool
    """Whether there are further ones after the last."""

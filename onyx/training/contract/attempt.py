"""What goes into a rank and what comes out of it: one attempt at a job. Needs no torch."""

from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from onyx.recipe.precision import Precision
from onyx.training.contract.event_kinds import RankEventKind
from onyx.training.contract.spec import Frozen, JobSpec


class Exit(IntEnum):
    """What a rank's exit status means. Anything else, and any signal, is a lost attempt."""

    DONE = 0
    """Finished: result.json is there."""

    SAVED = 10
    """Stopped because it was told to, after saving."""

    USER_ERROR = 20
    """The job cannot work as it was asked for: error.json says why. Never retried."""

    MEMORY = 30
    """Out of memory where it could not be retried in place: resume with a smaller budget."""


class Share(Frozen):
    """One rank's part in the plan."""

    device: str
    """"cuda:0", or "cpu:0" for a slice of the CPU."""

    uuid: str | None = None
    """The GPU's own name, to be made visible to the rank; nobody's order can confuse it."""

    threads: int = Field(default=1, ge=1)
    share: float = Field(gt=0, le=1)
    """Part of each window's tokens."""

    token_budget: int = Field(ge=1)
    """Padded tokens of one micro-batch."""

    micro_batch_cost: int = Field(default=0, ge=0)
    """Padded tokens that would take the time which a micro-batch takes whatever its size: how finely to cut."""

    heap: Literal["steady", "roomy"] = "steady"
    """On a CPU: whether freed memory goes back at once, or is kept for the next micro-batch."""

    memory_bytes: int | None = None
    """What this rank may use; on the CPU enforced by an rlimit."""


class Attempt(Frozen):
    """Everything a rank needs to know, in one file."""

    job_id: str
    number: int = Field(ge=1)
    """The fencing token."""

    spec: JobSpec
    plan: dict[str, Any]
    """The stored plan as JSON: kept for the model card, obeyed through `shares`."""

    shares: list[Share] = Field(min_length=1)
    """As the plan has them: attempts that ended out of memory change nothing here."""

    memory_losses: int = Field(default=0, ge=0)
    """Attempts that ended out of memory: the budgets are halved so many times, by a line of the journal."""

    precision: Precision
    model_dir: Path
    """The base model: a directory that transformers loads, safetensors only."""

    remote_code: bool = False
    """Whether the operator lets this model run code of its own."""

    layout: Literal["padded", "joined"] = "padded"
    """How samples become a micro-batch, as the plan has it."""

    compile_dir: Path | None = None
    """Where compiled graphs are kept between jobs; None where the plan does not compile. The one place with pickle in
    it: no job's data, and nobody's but the operator's to write."""

    data_dir: Path
    job_dir: Path
    attempt_dir: Path
    rendezvous: Path
    """A file that only this attempt's ranks know."""

    lease_seconds: float = 30.0
    """Silence on the lifeline for this long means exit."""

    grace_seconds: float = 30.0
    free_disk_bytes: int = 0
    """A checkpoint that can wait does so while it would leave less than this on the disk."""


class Event(Frozen):
    """A line of events.jsonl."""

    line: int = Field(ge=1)
    time: float
    """Seconds since the epoch."""

    kind: RankEventKind
    level: Literal["info", "warn", "error"] = "info"
    message: str
    data: dict[str, Any] = Field(default_factory=dict)


class Failure(Frozen):
    """error.json: what a user must change."""

    code: str
    message: str
    param: str | None = None
    findings: list[dict[str, Any]] = Field(default_factory=list)
    """Bad lines: {line, code, message}, up to a cap."""


class Result(Frozen):
    """result.json: what training came to."""

    updates: int
    skipped: int
    samples: int
    trained_tokens: int
    seconds: float
    final_loss: float | None
    best_loss: float | None
    best_evaluation_loss: float | None
    epochs: list[dict[str, Any]]
    """Per epoch: epoch, train_loss, train_accuracy, and evaluation_loss and evaluation_accuracy when there are any."""

    peak_bytes: list[int]
    """Measured, per rank: on the CPU what the process took beyond its start, on a GPU live tensors."""

    predicted_bytes: list[int] = Field(default_factory=list)
    """The plan's word for the same, per rank; empty when the plan had none."""

    @property
    def memory(self) -> list[dict[str, Any]]:
        """Onyx keeps score: predicted and measured bytes of each rank, and by which part the prediction was off."""
        return [
            {"predicted": said, "measured": seen, "error": said / seen - 1 if seen else None}
            for said, seen in zip(self.predicted_bytes, self.peak_bytes, strict=False)
        ]

    effective_batch: int
    micro_batch: int
    accumulation_steps: int


def attempt_dir(job_dir: Path, number: int) -> Path:
    return job_dir / "attempts" / str(number)


def attempt_file(attempt: Attempt) -> Path:
    """Where the runner writes the attempt, for its ranks to read."""
    return attempt.attempt_dir / "attempt.json"

"""One attempt at a job: what a rank gets, and what it returns. Needs no torch."""

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
    """Stopped on request, after saving."""

    USER_ERROR = 20
    """The job cannot work as specified: error.json says why. Never retried."""

    MEMORY = 30
    """Out of memory where the rank could not retry in place: resume with a smaller budget."""


class Share(Frozen):
    """One rank's part in the plan."""

    device: str
    """"cuda:0", or "cpu:0" for a slice of the CPU."""

    uuid: str | None = None
    """The GPU's own name. Unlike an index it does not depend on the order in which GPUs are listed."""

    threads: int = Field(default=1, ge=1)
    share: float = Field(gt=0, le=1)
    """Part of each window's tokens."""

    token_budget: int = Field(ge=1)
    """Padded tokens of one micro-batch."""

    micro_batch_cost: int = Field(default=0, ge=0)
    """The fixed time of a micro-batch, as the number of padded tokens that take as long. Decides how finely to cut."""

    heap: Literal["steady", "roomy"] = "steady"
    """On a CPU: freed memory goes back to the kernel at once ("steady"), or is kept for the next micro-batch."""

    memory_bytes: int | None = None
    """What this rank may use. On the CPU an rlimit enforces it."""


class Attempt(Frozen):
    """Everything a rank needs to know, in one file."""

    job_id: str
    number: int = Field(ge=1)
    """The fencing token."""

    spec: JobSpec
    plan: dict[str, Any]
    """The stored plan as JSON, for the model card. Ranks follow `shares`."""

    shares: list[Share] = Field(min_length=1)
    """As in the plan. Attempts that ended out of memory do not change them."""

    memory_losses: int = Field(default=0, ge=0)
    """Attempts that ended out of memory. For each, a line of the journal halves the budgets."""

    precision: Precision
    model_dir: Path
    """The base model: a directory that transformers loads, safetensors only."""

    remote_code: bool = False
    """Whether the operator allows this model's own code to run."""

    layout: Literal["padded", "joined"] = "padded"
    """How samples become a micro-batch, as in the plan."""

    compile_dir: Path | None = None
    """Where compiled graphs are kept between jobs; None where the plan does not compile.

    The only place with pickle in it. It holds no job's data, and only the operator's account may write there.
    """

    data_dir: Path
    job_dir: Path
    attempt_dir: Path
    rendezvous: Path
    """A file that only this attempt's ranks know."""

    lease_seconds: float = 30.0
    """The rank exits after this much silence on its lifeline."""

    grace_seconds: float = 30.0
    free_disk_bytes: int = 0
    """A checkpoint that would leave less than this on the disk is postponed, if it can be."""


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
    """result.json: the outcome of training."""

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
    """Measured, per rank: on the CPU growth of the process since its start, on a GPU live tensors."""

    predicted_bytes: list[int] = Field(default_factory=list)
    """The plan's prediction of the same, per rank; empty when it has none."""

    @property
    def memory(self) -> list[dict[str, Any]]:
        """Predicted and measured bytes of each rank, and the relative error of the prediction."""
        return [
            {"predicted": predicted, "measured": measured, "error": predicted / measured - 1 if measured else None}
            for predicted, measured in zip(self.predicted_bytes, self.peak_bytes, strict=False)
        ]

    effective_batch: int
    micro_batch: int
    accumulation_steps: int


def attempt_dir(job_dir: Path, number: int) -> Path:
    return job_dir / "attempts" / str(number)


def attempt_file(attempt: Attempt) -> Path:
    """Where the runner writes the attempt, for its ranks to read."""
    return attempt.attempt_dir / "attempt.json"

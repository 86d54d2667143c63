"""Bodies and answers about fine-tuning jobs, their events and their checkpoints."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from onyx.api.schemas.common import Amount, Answer, Body, ModelName
from onyx.api.schemas.training import TrainingConfig
from onyx.training.contract.spec import WandbSpec

FileId = Annotated[str, StringConstraints(min_length=1, max_length=64)]


def _auto(value: Any) -> Any:
    return None if value == "auto" else value


Automatic = BeforeValidator(_auto, json_schema_input_type=float | Literal["auto"] | None)
"""A number, or "auto", which is the same as leaving it out."""

Epochs = Annotated[Annotated[int, Field(ge=1, le=50)] | None, Automatic]
BatchSize = Annotated[Annotated[int, Field(ge=1, le=256)] | None, Automatic]
Multiplier = Annotated[Annotated[float, Field(gt=0, le=10_000)] | None, Automatic]
Beta = Annotated[Annotated[float, Field(gt=0, le=2)] | None, Automatic]


class Hyperparameters(Body):
    """Each a number, or "auto"."""

    n_epochs: Epochs = None
    batch_size: BatchSize = None
    learning_rate_multiplier: Multiplier = None


class DpoHyperparameters(Hyperparameters):
    beta: Beta = None


class Supervised(Body):
    hyperparameters: Hyperparameters | None = None


class Dpo(Body):
    hyperparameters: DpoHyperparameters | None = None


class Method(Body):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Supervised | None = None
    dpo: Dpo | None = None
    reinforcement: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "Method":
        others = [name for name in ("supervised", "dpo") if name != self.type and getattr(self, name) is not None]
        if others:
            raise ValueError(f"the type is {self.type}, so there can be no settings for {others[0]}")
        return self


class Integration(Body):
    type: Literal["wandb"]
    wandb: WandbSpec


class OnyxOptions(TrainingConfig):
    """Onyx's own settings, beyond OpenAI's API: sent as `onyx` in the client's `extra_body`."""

    max_length: Annotated[int, Field(ge=2)] = 2048
    """Tokens of a sample. Longer samples are truncated, and an event says how many."""

    overlong: Literal["truncate", "refuse"] = "truncate"
    evaluation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The fraction of the training file to evaluate on, where there is no validation file."""

    tolerated_bad_lines: Annotated[float, Field(ge=0, lt=1)] = 0.0
    window: Amount | None = None
    """The batch size, for sizes above OpenAI's limit of 256."""

    accumulation_steps: Amount | None = None
    devices: Annotated[int, Field(ge=1, le=1024)] = 1
    auto_start: bool = True
    """False: the job is checked and planned, then waits for `resume`."""

    webhook_url: Annotated[str, Field(max_length=2048)] | None = None


_LABEL = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_VALUE = Annotated[str, StringConstraints(max_length=512)]


class JobBody(Body):
    """A fine-tuning job to create."""

    model: ModelName
    training_file: FileId
    validation_file: FileId | None = None
    suffix: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: Annotated[dict[_LABEL, _VALUE], Field(max_length=16)] | None = None
    integrations: Annotated[list[Integration], Field(max_length=1)] | None = None
    method: Method | None = None
    hyperparameters: Hyperparameters | None = None
    onyx: OnyxOptions = OnyxOptions()

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "onyx/tiny",
                    "training_file": "file-0123456789abcdefghijklmn",
                    "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": "auto"}}},
                    "onyx": {"lora_r": 16},
                }
            ]
        }
    )


class Numbers(Answer):
    """Hyperparameters with every "auto" resolved."""

    n_epochs: int
    batch_size: int
    learning_rate_multiplier: float


class DpoNumbers(Numbers):
    beta: float


class MethodOf(Answer):
    hyperparameters: Numbers | DpoNumbers


class MethodAnswer(Answer):
    type: Literal["supervised", "dpo"]
    supervised: MethodOf | None = None
    dpo: MethodOf | None = None


class JobError(Answer):
    code: str
    message: str
    param: str | None


class JobObject(Answer):
    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    error: JobError | None
    fine_tuned_model: str | None
    finished_at: int | None
    hyperparameters: Numbers
    model: str
    organization_id: str
    result_files: list[str]
    seed: int
    status: Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
    trained_tokens: int | None
    training_file: str
    validation_file: str | None
    estimated_finish: int | None
    integrations: list[Integration]
    metadata: dict[str, str] | None
    method: MethodAnswer


class JobPage(Answer):
    object: Literal["list"] = "list"
    data: list[JobObject]
    has_more: bool


class EventObject(Answer):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any]


class EventPage(Answer):
    object: Literal["list"] = "list"
    data: list[EventObject]
    has_more: bool


class CheckpointMetrics(Answer):
    step: int
    train_loss: float | None = None
    train_mean_token_accuracy: float | None = None
    valid_loss: float | None = None
    valid_mean_token_accuracy: float | None = None
    full_valid_loss: float | None = None
    full_valid_mean_token_accuracy: float | None = None


class CheckpointObject(Answer):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: CheckpointMetrics
    step_number: int


class CheckpointPage(Answer):
    object: Literal["list"] = "list"
    data: list[CheckpointObject]
    first_id: str | None
    last_id: str | None
    has_more: bool

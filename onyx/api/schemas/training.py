"""Bodies and answers of the training endpoints."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from onyx.api.schemas.common import Amount, Answer, Body, Fraction, GpuIds, Json, ModelName
from onyx.api.schemas.configs import ConfigBody
from onyx.training.contract.spec import TrainingSpec

Samples = list[dict[str, JsonValue]]
FileId = Annotated[str, Field(max_length=64)]
FilePath = Annotated[str, Field(min_length=1, max_length=1024)]
ModuleName = Annotated[str, Field(min_length=1, max_length=200)]


class DatasetConfig(Body):
    """Where the samples come from: exactly one of texts, rows, file_id, path, hub."""

    texts: list[str] | None = Field(default=None, min_length=1)
    rows: Samples | None = Field(default=None, min_length=1)
    """Samples as JSON objects, like the lines of a JSONL file."""

    file_id: FileId | None = None
    """An uploaded file."""

    path: FilePath | None = None
    """A file below the operator's data root."""

    hub: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The name of a dataset on the Hugging Face hub."""

    hub_split: Annotated[str, Field(min_length=1, max_length=100)] = "train"
    max_length: Annotated[int, Field(ge=2)] = 512
    overlong: Literal["truncate", "refuse"] = "truncate"
    evaluation_rows: Samples | None = Field(default=None, min_length=1)
    evaluation_file_id: FileId | None = None
    evaluation_path: FilePath | None = None
    evaluation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tolerated_bad_lines: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _one_source(self) -> "DatasetConfig":
        given = [name for name in ("texts", "rows", "file_id", "path", "hub") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"give exactly one of texts, rows, file_id, path or hub; got {found}")
        return self


class TrainingConfig(TrainingSpec):
    """How to train: every option of a job."""

    lora_r: Annotated[int, Field(ge=1, le=4096)] | None = None
    lora_alpha: Annotated[float, Field(gt=0)] | None = None
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    lora_target_modules: Annotated[list[ModuleName], Field(max_length=1000)] | Literal["all-linear"] | None = None
    max_memory_usage: Fraction | None = None
    memory_safety_margin: Fraction | None = None
    gpu_ids: GpuIds | None = None

    model_config = ConfigDict(strict=True)

    def given(self) -> dict[str, Any]:
        """The fields that the client set; defaults are left out."""
        return {name: value for name, value in self.model_dump(exclude_unset=True).items() if value is not None}


class TrainingBody(Body):
    """The body that makes a training."""

    model_name: ModelName
    dataset_config: DatasetConfig
    training_config: TrainingConfig = TrainingConfig()
    user_id: Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(min_length=1, max_length=200)]
    target_effective_batch_size: Amount = 32
    accumulation_steps: Amount | None = None
    distributed: bool = False
    world_size: Annotated[int, Field(ge=1, le=1024)] = 1
    rank: Literal[0] = 0
    gradient_accumulation_config: ConfigBody | Annotated[str, Field(max_length=128)] | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model_name": "onyx/tiny",
                    "dataset_config": {"texts": ["sample text 1", "sample text 2"], "max_length": 512},
                    "training_config": {"epochs": 3, "learning_rate": 5e-5},
                    "user_id": 123,
                    "target_effective_batch_size": 64,
                    "accumulation_steps": 8,
                }
            ]
        }
    )


class TrainingAnswer(Answer):
    """The state of a training; what is not known yet is null."""

    success: bool | None
    training_id: str
    status: str
    model_path: str | None
    training_time: float | None
    best_loss: float | None
    effective_batch_size: int | None
    actual_batch_size_per_gpu: int | None
    accumulation_steps: int | None
    adjusted_learning_rate: float | None
    accumulation_stats: Json
    gpu_stats: Json
    training_history: list[Json]
    plan: Json | None
    progress: Json | None
    error: str | None


class TrainingPage(Answer):
    """Newest first. The next page has `after` set to the last id."""

    data: list[TrainingAnswer]
    has_more: bool


class EventAnswer(Answer):
    seq: int
    time: float
    kind: str
    level: str
    message: str
    attempt: int | None
    data: Json


class EventPage(Answer):
    """In order. The next page has `after` set to the last seq."""

    data: list[EventAnswer]
    has_more: bool


class LogLine(Answer):
    line: int
    source: str
    text: str


class LogPage(Answer):
    data: list[LogLine]
    has_more: bool

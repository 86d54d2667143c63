"""A job's specification: one typed, immutable value from the request to the model card. Needs no torch."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Objective = Literal["sft", "dpo"]


class Frozen(BaseModel):
    """An immutable value. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LoraSpec(Frozen):
    """Adapters instead of all weights."""

    r: Count = 8
    alpha: Annotated[float, Field(gt=0)] = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: list[str] | Literal["all-linear"] | None = "all-linear"
    """Names of modules to adapt; None is PEFT's own choice for the architecture."""


class DataSpec(Frozen):
    """Where the samples come from: exactly one of texts, rows, path, hub."""

    texts: list[str] | None = None
    rows: list[dict[str, JsonValue]] | None = None
    """As lines of a JSONL file: text, prompt/completion or messages; for dpo preference pairs."""

    path: str | None = None
    """A file (JSONL, CSV, Parquet, txt). The process that made the spec has resolved and checked it."""

    hub: str | None = None
    """The name of a data set on the hub."""

    hub_split: str = "train"
    max_length: Annotated[int, Field(ge=2)] = 512
    overlong: Literal["truncate", "refuse"] = "truncate"
    evaluation_path: str | None = None
    evaluation_rows: list[dict[str, JsonValue]] | None = None
    evaluation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the samples held out when there is no evaluation file."""

    tolerated_bad_lines: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The greatest share of bad lines that are left out; more fail the job."""

    @model_validator(mode="after")
    def _one_source(self) -> "DataSpec":
        given = [name for name in ("texts", "rows", "path", "hub") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"give exactly one of texts, rows, path or hub; got {found}")
        return self


class TrainingSpec(Frozen):
    """How to train."""

    objective: Objective = "sft"
    """"sft": learn from samples. "dpo" (direct preference optimisation): from pairs of answers, one preferred."""

    dpo_beta: Annotated[float, Field(gt=0, le=2)] = 0.1
    """How closely dpo keeps the model to the original: higher is closer."""

    epochs: Annotated[int, Field(ge=1, le=1000)] = 3
    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    learning_rate_rule: Literal["none", "inverse", "linear", "sqrt"] = "none"
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Not applied to norms and biases."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all samples over which the learning rate rises. Schedules count samples, never steps."""

    accumulation_warmup: Annotated[int, Field(ge=0)] = 0
    """Updates over which the window grows from one micro-batch to N."""

    accumulation_scheduler: Literal["linear", "cosine", "step"] | None = None
    """How the window grows. None: it is always N."""

    gradient_clipping: Annotated[float, Field(gt=0)] | None = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    method: Literal["full", "lora"] = "full"
    lora: LoraSpec = LoraSpec()
    merge_adapter: bool = False
    """Publish the merged model instead of the adapter."""

    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    gradient_checkpointing: bool = False
    compile: bool | Literal["auto"] = "auto"
    """Whether the step is compiled. "auto": where the plan expects that it saves time."""

    deterministic: bool = True
    early_stopping_patience: Count | None = None
    """Evaluations without improvement after which training stops."""

    max_skipped_in_a_row: Count = 20
    """Updates that may be skipped in a row before the job fails."""

    save_every_updates: Count | None = None
    """Checkpoint after this many updates instead of by time. For tests."""

    time_limit_seconds: Annotated[float, Field(gt=0)] | None = None


class WandbSpec(Frozen):
    """Where a job's numbers are shown in Weights & Biases."""

    project: str = Field(min_length=1, max_length=128)
    name: str | None = Field(default=None, max_length=128)
    """The run's name. None: the job's id."""

    entity: str | None = Field(default=None, max_length=128)
    tags: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(default=[], max_length=50)


class JobSpec(Frozen):
    """A job as its owner specified it."""

    model: str = Field(min_length=1, max_length=512)
    """A hub id, a directory under the operator's model root, an earlier job's model, or onyx/tiny."""

    data: DataSpec
    training: TrainingSpec = TrainingSpec()
    window: Count = 32
    """Samples (for dpo, pairs) of one update: the effective batch."""

    accumulation_steps: Count | None = None
    """N. None: the planner chooses it."""

    devices: Count = 1
    """How many devices to train on."""

    gpu_ids: list[int] | None = None
    """Which GPUs. None: any."""

    max_memory_usage: Fraction = 0.9
    memory_safety_margin: Fraction = 0.1
    auto_start: bool = True
    """False: after preparation and planning the job is paused until it is resumed."""

    webhook_url: str | None = Field(default=None, max_length=2048)
    """Notified when the job ends, as is the operator's webhook. The process that made the spec has checked the URL."""

    wandb: WandbSpec | None = None
    labels: dict[str, Any] = {}
    """Returned to the client unread (user_id, suffix). Only `metadata` is used: jobs can be searched by it."""

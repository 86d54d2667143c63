"""Preparing a job: the request that the runner writes, and the result that it reads. Needs no torch."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from onyx.memory.devices.device import Device
from onyx.recipe.precision import Precision
from onyx.training.contract.attempt import Share
from onyx.training.contract.spec import Count, Fraction, Frozen, JobSpec

HUB_TOKEN_VARIABLE = "ONYX_HUB_TOKEN"  # noqa: S105 - the variable's name
"""The environment variable is the only way a hub token reaches a helper: no file, argument list or log line has it."""


class Roots(Frozen):
    """Where models and data may come from."""

    home: Path
    """ONYX_HOME."""

    models: Path | None = None
    """The operator's model root. A model's name may be a directory under it."""

    data: tuple[Path, ...] | None = None
    """Directories that data files must lie in. None: the process that made the spec has checked them."""

    jobs: tuple[str, ...] = ()
    """Earlier jobs whose models this owner may use. The process that makes the request has checked the owner."""

    remote_code: tuple[str, ...] = ()
    """Models whose own code the operator allows to run, by the names that jobs give."""


class PrepareRequest(Frozen):
    """request.json, which `onyx.training.prepare.main:main` reads."""

    spec: JobSpec
    roots: Roots
    devices: tuple[Device, ...] = ()
    """The devices to plan for. Empty: no plan is made."""

    most_rows: int | None = None
    """The operator's limit on the rows of a job's data."""

    out: Path
    """The directory that prepared.json or error.json is written into."""


class Planned(Frozen):
    """The plan as the store and the ranks need it."""

    plan: dict[str, Any]
    """The plan as JSON, for people, the store and the model card."""

    shares: list[Share] = Field(min_length=1)
    precision: Precision


class PreparedJob(Frozen):
    """prepared.json: everything known before the job gets a device."""

    model_dir: Path
    data_dir: Path
    remote_code: bool = False
    """Whether ranks may run the model's own code."""

    samples: int
    """Samples to train on."""

    evaluation_samples: int
    tokens: int
    """Tokens of one epoch."""

    label_tokens: int
    """Tokens of one epoch that count in the loss."""

    longest: int
    """Tokens of the longest sample, evaluation included."""

    lengths: list[tuple[int, int]]
    """Histogram: (most tokens, samples), at powers of two."""

    truncated: int
    """Samples cut at max_length."""

    bad_lines: int
    """Bad lines, left out because the job tolerates some."""

    findings: list[dict[str, Any]] = Field(default_factory=list)
    """What is wrong with them: {line, code, message, part}, up to a cap."""

    inexact: list[str] = Field(default_factory=list)
    """Parts of the model that keep updates from being exact, or that the loss leaves out for that reason."""

    planned: Planned | None = None

    @property
    def warnings(self) -> list[str]:
        """What the job's owner should know before the job starts."""
        planned = self.planned.plan.get("warnings", ()) if self.planned else ()
        return [*self.inexact, *planned]


class EstimateRequest(Frozen):
    """request.json of a plan without a job, which `onyx.training.prepare.plan_estimate:main` reads."""

    model: str
    roots: Roots
    window: Count
    devices: tuple[Device, ...] = Field(min_length=1)
    max_length: int | None = None
    """None: 512, or the model's limit if that is less."""

    method: Literal["full", "lora"] = "full"
    objective: Literal["sft", "dpo"] = "sft"
    """With "dpo" a sample is a pair, and max_length counts the prompt with the longer answer."""

    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    max_memory_usage: Fraction = 0.9
    memory_safety_margin: Fraction = 0.1
    out: Path


class Estimate(Frozen):
    """plan.json: the result."""

    plan: dict[str, Any]

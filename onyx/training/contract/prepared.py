"""What goes into the preparation of a job and what comes out of it. Needs no torch: jobs/ reads and writes these."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from onyx.memory.devices.device import Device
from onyx.recipe.precision import Precision
from onyx.training.contract.attempt import Share
from onyx.training.contract.spec import Count, Fraction, Frozen, JobSpec

HUB_TOKEN_VARIABLE = "ONYX_HUB_TOKEN"  # noqa: S105 - the variable's name
"""The only way a hub token reaches a helper: it is in no file, no argument list and no log line."""


class Roots(Frozen):
    """Where models and data may come from."""

    home: Path
    """ONYX_HOME."""

    models: Path | None = None
    """The operator's model root: names of models are also directories under it."""

    data: tuple[Path, ...] | None = None
    """Directories that data files must lie in. None: whoever made the spec has checked."""

    jobs: tuple[str, ...] = ()
    """Former jobs whose models the asker may use. Whoever makes the request has checked the owner."""

    remote_code: tuple[str, ...] = ()
    """Models whose own code the operator allows to run, by the names that jobs use."""


class PrepareRequest(Frozen):
    """request.json: what `onyx.training.prepare.main:main` is given."""

    spec: JobSpec
    roots: Roots
    devices: tuple[Device, ...] = ()
    """What to plan for. Empty: no plan is made."""

    most_rows: int | None = None
    """Rows that the operator allows a job's data to have."""

    out: Path
    """The directory that prepared.json or error.json is written into."""


class Planned(Frozen):
    """The plan as the store and the ranks need it."""

    plan: dict[str, Any]
    """The plan as JSON, for people, the store and the model card."""

    shares: list[Share] = Field(min_length=1)
    precision: Precision


class PreparedJob(Frozen):
    """prepared.json: everything that is known before a device is taken."""

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
    """Samples that were cut at max_length."""

    bad_lines: int
    """Lines left out because the job tolerates some."""

    findings: list[dict[str, Any]] = Field(default_factory=list)
    """What is known of these lines: {line, code, message, part}, up to a cap."""

    inexact: list[str] = Field(default_factory=list)
    """What in the model keeps updates from being exact, or is left out to make them so."""

    planned: Planned | None = None

    @property
    def warnings(self) -> list[str]:
        """What the job's owner should know before it starts."""
        planned = self.planned.plan.get("warnings", ()) if self.planned else ()
        return [*self.inexact, *planned]


class EstimateRequest(Frozen):
    """request.json of a plan without a job: what `onyx.training.prepare.plan_estimate:main` is given."""

    model: str
    roots: Roots
    window: Count
    devices: tuple[Device, ...] = Field(min_length=1)
    max_length: int | None = None
    """None: 512, or what the model takes if that is less."""

    method: Literal["full", "lora"] = "full"
    objective: Literal["sft", "dpo"] = "sft"
    """With "dpo" a sample is a pair, and max_length the tokens of its longer answer, the prompt included."""

    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    max_memory_usage: Fraction = 0.9
    memory_safety_margin: Fraction = 0.1
    out: Path


class Estimate(Frozen):
    """plan.json: the answer."""

    plan: dict[str, Any]

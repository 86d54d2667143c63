"""A recipe: what is trained and how, as far as it decides memory. Needs no torch."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

from onyx.memory.errors import PlanError
from onyx.recipe.precision import Precision

Method = Literal["full", "lora"]
Task = Literal["auto", "causal-lm", "classification"]
Objective = Literal["sft", "dpo"]


@dataclass(frozen=True, kw_only=True)
class Lora:
    """The low-rank adapter, in PEFT's terms."""

    r: int = 8
    """Rank."""

    alpha: float = 16
    """Scaling numerator. It changes no memory; the probe's adapter takes it all the same."""

    dropout: float = 0.0
    """Dropout before the adapter: above 0 every adapted layer keeps a mask and a copy of its input."""

    target_modules: tuple[str, ...] | None = None
    """Names of the adapted layers. None: what PEFT has for this model type, else every linear layer."""

    def __post_init__(self) -> None:
        if not _is_whole(self.r) or self.r < 1:
            raise PlanError(f"lora r must be a whole number of at least 1, not {self.r!r}")
        if not 0 <= self.dropout < 1:
            raise PlanError(f"lora dropout must be at least 0 and below 1, not {self.dropout!r}")
        if self.target_modules is not None and not self.target_modules:
            raise PlanError("lora target_modules must name at least one layer, or be None for the model's default")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained and how."""

    model: Any
    """A hub id, a directory with a config.json, or a transformers config object."""

    method: Method = "full"
    """Every weight is trained, or a LoRA adapter beside frozen ones."""

    lora: Lora = field(default_factory=Lora)
    """Read when method is "lora"."""

    precision: Precision = "float32"
    """bf16/fp16: autocast, and the dtype of frozen weights. What is trained stays float32."""

    gradient_checkpointing: bool = False
    """Keep only the blocks' inputs and compute the rest again in backward."""

    task: Task = "auto"
    """The head. "auto" follows the architecture that the config names."""

    objective: Objective = "sft"
    """What is learned from: samples, or pairs of them of which one is preferred."""

    max_length: int = 512
    """Tokens of the longest sample."""

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            if getattr(self, name) not in get_args(kind):
                raise PlanError(f"{name} must be one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}")
        if not _is_whole(self.max_length) or self.max_length < 1:
            raise PlanError(f"max_length must be a whole number of at least 1, not {self.max_length!r}")

    def changed(self, **changes: Any) -> Self:
        """The same recipe with some fields changed."""
        return replace(self, **changes)

    @property
    def rows(self) -> int:
        """Rows of a batch that one sample makes: a pair is two."""
        return 2 if self.objective == "dpo" else 1

    @property
    def method_label(self) -> str:
        """For people: "full" or "LoRA r=8"."""
        return f"LoRA r={self.lora.r}" if self.method == "lora" else "full"


KINDS = {"method": Method, "precision": Precision, "task": Task, "objective": Objective}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

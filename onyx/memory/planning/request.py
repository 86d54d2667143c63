"""The request for a plan: its fields are the options of `onyx.memory.planner.plan`. Needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onyx.memory.devices.device import Device
from onyx.memory.errors import PlanError
from onyx.memory.planning.timing import Timing
from onyx.memory.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A request, validated once."""

    recipe: Recipe
    """What is trained."""

    effective_batch: int
    """Samples of one update, over all devices."""

    devices: Sequence[Device | Mapping[str, Any]]
    """Devices, or cards that this host does not have: {"name": "A100", "memory_gb": 40}."""

    lengths: Sequence[int] = ()
    """Tokens of each sample. Empty: all may be max_length."""

    samples: int | None = None
    """Samples of one epoch. None: as many as there are lengths."""

    epochs: int = 1
    """Only to tell how long the job takes."""

    accumulation_steps: int | None = None
    """The user's N; None lets the planner choose."""

    max_memory_usage: float = 0.9
    """Part of a device's memory that may be used."""

    memory_safety_margin: float = 0.1
    """Part of that which stays free."""

    compile: bool | Literal["auto"] = "auto"
    """Whether to compile the step; auto: where it pays."""

    quick: bool = False
    """For a job: on a CPU, micro-batches no larger than are quickest, so that memory is left for a roomy heap."""

    timings: Mapping[str, Timing] = field(default_factory=dict)
    """By device label, measured by the caller; for other devices, what ranks have stored."""

    def __post_init__(self) -> None:
        for name in ("effective_batch", "samples", "epochs", "accumulation_steps"):
            _whole(name, getattr(self, name))
        for name in ("max_memory_usage", "memory_safety_margin"):
            fraction(name, getattr(self, name))
        if not self.devices:
            raise PlanError("devices must name at least one device")
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in self.lengths):
            raise PlanError("lengths must be whole numbers of at least 1: leave out empty samples")

    @property
    def longest(self) -> int:
        """Tokens of the longest sample after truncation."""
        limit = self.recipe.max_length
        return min(max(self.lengths), limit) if self.lengths else limit

    @property
    def count(self) -> int | None:
        """Samples of one epoch, when known."""
        return self.samples or len(self.lengths) or None

    @property
    def window(self) -> int:
        """The target, or all samples when there are fewer."""
        return min(self.effective_batch, self.count or self.effective_batch)


def fraction(name: str, value: object) -> None:
    """Check a part of something: more than nothing and less than all of it."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise PlanError(f"{name} must be above 0 and below 1, not {value!r}")


def _whole(name: str, value: object) -> None:
    if value is None and name in ("samples", "accumulation_steps"):
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PlanError(f"{name} must be a whole number of at least 1, not {value!r}")

"""A plan: which micro-batch and share each device takes, and what that needs. Needs no torch."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

FORMAT = 1
"""Counts up when the meaning of a stored plan changes."""


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """One device's part of every window."""

    label: str
    """ "cuda:0", "cpu:0"."""

    name: str
    """The device's model name."""

    micro_batch: int
    """Samples of the greatest length that it runs at once."""

    token_budget: int
    """Padded tokens (samples × longest, for pairs twice that) that it runs at once, at any length of the data."""

    share: int
    """Samples of a window that it runs."""

    steps: int
    """Micro-batches of the greatest length that its share takes."""

    usable: int
    """Bytes that the plan may use: min(max_memory_usage × total, free) × (1 − memory_safety_margin)."""

    expected_peak: int
    """Bytes that the process is expected to take."""

    low: int
    """Bytes of live tensors alone: it cannot be less."""

    high: int
    """Bytes with the largest overhead that was measured, or that may occur."""

    overhead_measured: bool
    """Whether the overhead was measured on this machine; False: it is what others published for such cards."""

    micro_batch_cost: int = 0
    """Padded tokens that take as long as a micro-batch's fixed cost: it decides how finely a window is cut."""

    heap: Literal["steady", "roomy"] = "steady"
    """On a CPU: whether freed memory goes back to the system at once, or is kept, which is faster and takes more."""

    timing_key: str | None = None
    """The key under which a rank stores how long its micro-batches took."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the planner decided. Made once, stored with the job."""

    model: str
    """The name in the request, or the model type of a config."""

    method: str
    """ "full" or "lora"."""

    lora_r: int | None
    """The adapter's rank."""

    precision: str
    """float32, bf16 or fp16."""

    gradient_checkpointing: bool
    """Whether activations are computed again."""

    objective: str = "sft"
    """ "sft", or "dpo": then a sample is a pair."""

    compile: bool = False
    """Whether the step is compiled. It changes the bits, so every attempt follows the plan."""

    layout: Literal["padded", "joined"] = "padded"
    """Whether a micro-batch is rows padded to the longest, or one row of samples end to end, without padding. It
    changes the bits too."""

    max_length: int
    """Tokens of the longest sample, of a pair's longer answer, that the plan provides for."""

    window: int
    """Samples of one update, over all devices: the target, exactly, or all samples when there are fewer."""

    accumulation_steps: int
    """The user's N, else ceil(window / sum of micro-batches). A device's `steps` is its true count."""

    devices: tuple[DevicePlan, ...]
    """In the order given, without those that take no part."""

    seconds_per_update: float | None
    """None unless every device's timing is known."""

    seconds_total: float | None
    """For the whole job, when the number of samples is known too."""

    versions: dict[str, str]
    """Of the packages that the plan was made with."""

    warnings: tuple[str, ...]
    """What a user should know."""

    @property
    def micro_batch(self) -> int:
        """The largest micro-batch."""
        return max(each.micro_batch for each in self.devices)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"format": FORMAT, **asdict(self)}

    def to_json(self) -> str:
        """One line of JSON; the same plan, the same text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; ValueError when the text is no plan."""
        try:
            raw = json.loads(text)
            if raw.pop("format") != FORMAT:
                raise ValueError(f"this plan was stored in another format than {FORMAT}: make a new one")
            raw["devices"] = tuple(DevicePlan(**each) for each in raw["devices"])
            raw["warnings"] = tuple(raw["warnings"])
            return cls(**raw)
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"not a stored plan: {problem}") from problem

"""How long a step takes, from real probes on the device. Needs no torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one device's work: micro-batch = fixed + tokens × per token."""

    per_micro_batch: float
    """Seconds that every micro-batch costs, however small."""

    per_token: float
    """Seconds per padded token, forward and backward."""

    per_update: float
    """Seconds for clipping and the optimizer's step."""

    def seconds(self, *, micro_batches: int, tokens: float) -> float:
        """Of one update."""
        return self.per_update + micro_batches * self.per_micro_batch + tokens * self.per_token

    @classmethod
    def through(cls, seconds: Mapping[int, float], *, per_update: float = 0.0) -> Self:
        """A line through the smallest and the largest of some micro-batches: seconds by padded tokens."""
        if len(seconds) < 2:
            raise ValueError("shapes must differ in samples × length: a line needs two points")
        (few, quick), (many, slow) = min(seconds.items()), max(seconds.items())
        per_token = max(0.0, (slow - quick) / (many - few))
        return cls(per_micro_batch=max(0.0, quick - few * per_token), per_token=per_token, per_update=per_update)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote; ValueError when the text is not that."""
        try:
            return cls(**{name: float(value) for name, value in json.loads(text).items()})
        except (TypeError, AttributeError) as problem:
            raise ValueError(f"not a stored timing: {problem}") from problem

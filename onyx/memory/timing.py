"""How long a step takes, from real probes on the device. Needs no torch."""

from dataclasses import dataclass


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

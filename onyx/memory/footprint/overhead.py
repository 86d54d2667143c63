"""What a training process takes beyond its live tensors: measured per machine, or assumed. Needs no torch."""

import json
from dataclasses import asdict, dataclass
from typing import Self

GIB = 2**30

CAUTION = 0.25
"""How far a plan goes from the expected overhead to the high one."""


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """A line: bytes taken = fixed + slack × bytes of live tensors."""

    fixed: int
    """Bytes that a process takes before any tensor: libraries' own tables, a CUDA context."""

    slack: float
    """How much more the allocator holds than is alive."""

    fixed_high: int
    """The largest `fixed` that was measured, or that may occur."""

    slack_high: float
    """The same for `slack`."""

    measured: bool
    """False: no process has run on such a device here, and the figures are those that others published."""

    def expected(self, live: float) -> int:
        """Bytes that the process takes when `live` bytes of tensors are alive."""
        return int(self.fixed + self.slack * live)

    def high(self, live: float) -> int:
        """Bytes that it may take."""
        return int(self.fixed_high + self.slack_high * live)

    def cautious(self, live: float) -> int:
        """Bytes that a plan reckons with: a quarter of the way from the expected to the high figure.

        Real processes lie on both sides of the expected figure (measured: by 1 %), and a plan must hold every time.
        """
        return int(self._cautious_fixed + self._cautious_slack * live)

    def live(self, size: float) -> float:
        """The bytes of tensors for which a plan reckons with `size`."""
        return (size - self._cautious_fixed) / self._cautious_slack

    @property
    def _cautious_fixed(self) -> float:
        return self.fixed + CAUTION * (self.fixed_high - self.fixed)

    @property
    def _cautious_slack(self) -> float:
        return self.slack + CAUTION * (self.slack_high - self.slack)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote; ValueError when the text is not that."""
        try:
            return cls(**json.loads(text))
        except TypeError as problem:
            raise ValueError(f"not a stored overhead: {problem}") from problem


ASSUMED_CUDA = Overhead(fixed=GIB // 2, slack=1.08, fixed_high=int(1.4 * GIB), slack_high=1.41, measured=False)
"""For cards that are not here. Published: 0.3 to 1.4 GB per process, 1.08 to 1.41 reserved per allocated byte."""

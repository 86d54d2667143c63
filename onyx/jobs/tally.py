"""What a runner's jobs have done since it started: numbers that only rise."""

from collections.abc import Sequence
from dataclasses import dataclass

from onyx.training.attempt import Event


@dataclass
class Tally:
    """Counted from what the ranks say."""

    events: int = 0
    trained_tokens: int = 0

    def heard(self, events: Sequence[Event], before: int) -> int:
        """Lines of an attempt that are in the store now. `before`, and what is returned: the tokens of its job."""
        self.events += len(events)
        reports = [event.data.get("trained_tokens") for event in events if event.kind == "metrics"]
        after = max([tokens for tokens in reports if isinstance(tokens, int)], default=before)
        self.trained_tokens += max(0, after - before)
        return max(before, after)

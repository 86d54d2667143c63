"""How fast one rank is by itself, over a whole attempt: for the shares of later plans.

Waiting for other ranks does not count, so that it is the device's own pace, whatever its share was.
"""

import time
from dataclasses import dataclass

ENOUGH_SECONDS = 10.0
"""Of work before the pace says anything: a short job on a busy host would call a device slow that is not."""


@dataclass
class Pace:
    """Tokens, and the seconds of work that they took."""

    tokens: int = 0
    seconds: float = 0.0
    _began: float | None = None
    _doing: int = 0

    def begin(self, tokens: int) -> None:
        """A share of so many tokens."""
        self._began, self._doing = time.monotonic(), tokens

    def end(self) -> None:
        """It is done, on the device too. What was not begun, such as a warm-up, is not counted."""
        if self._began is not None:
            self.tokens += self._doing
            self.seconds += time.monotonic() - self._began
            self._began = None

    @property
    def per_token(self) -> float | None:
        """Seconds; None before enough was done."""
        return self.seconds / self.tokens if self.tokens and self.seconds >= ENOUGH_SECONDS else None

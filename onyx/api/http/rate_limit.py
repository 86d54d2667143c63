"""How often a caller may ask. Counted in this process: behind several, each counts for itself."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import limits
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from onyx.api.http.errors import ApiError


class RateLimit:
    """A number of requests per time, for each caller."""

    def __init__(self, rate: str, what: str) -> None:
        try:
            self._item = limits.parse(rate)
        except ValueError:
            raise ValueError(f"a rate limit is a number per time, such as 120/minute, not {rate!r}") from None
        self._what = what
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def hit(self, caller: str) -> None:
        """Count one; 429 for one too many."""
        if await self._limiter.hit(self._item, caller):
            return
        window = await self._limiter.get_window_stats(self._item, caller)
        seconds = max(1, round(window.reset_time - time.time()))
        raise ApiError(
            429,
            f"more than {self._item} {self._what}: ask again in {seconds} seconds",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(seconds)},
        )


class Places:
    """How many answers one caller may wait for at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """429 when there is no place left."""
        if self._taken[caller] >= self._most:
            raise ApiError(
                429,
                f"{self._most} streams or waiting requests are open, which is the limit: close one",
                code="too_many_streams",
                headers={"Retry-After": "10"},
            )

    @contextmanager
    def one(self, caller: str) -> Iterator[None]:
        """Take a place while something is waited for."""
        self.check(caller)
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]

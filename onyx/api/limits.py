"""How often a caller may ask. Counted in this process: behind several, each counts for itself."""

import time

import limits
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from onyx.api.errors import ApiError


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

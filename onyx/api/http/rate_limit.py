"""Limits per caller: requests per time, and open streams. Each server process counts for itself."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import limits
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from onyx.api.http.errors import ApiError


class RateLimit:
    """At most so many requests of one caller per time, such as "120/minute"."""

    def __init__(self, rate: str, what: str) -> None:
        try:
            self._item = limits.parse(rate)
        except ValueError:
            raise ValueError(f"a rate limit is a number per time, such as 120/minute, not {rate!r}") from None
        self._what = what
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def hit(self, caller: str) -> None:
        """Count a request; 429 if it is one too many."""
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


class ConcurrencyLimit:
    """At most so many open streams and waiting requests of one caller."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """429 if the caller has no slot left."""
        if self._open[caller] >= self._most:
            raise ApiError(
                429,
                f"{self._most} streams or waiting requests are open, which is the limit: close one",
                code="too_many_streams",
                headers={"Retry-After": "10"},
            )

    @contextmanager
    def slot(self, caller: str) -> Iterator[None]:
        """Use a slot for as long as the stream is open."""
        self.check(caller)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

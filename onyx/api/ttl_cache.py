"""What was read a moment ago: a question that many ask at once is put to the store once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST = 1024
"""Answers that are kept; the oldest go first."""


class TtlCache(Generic[K, V]):
    """Answers that are taken for true for `seconds` after they were asked for.

    From half of that time on a new one is read while the old one still serves: on a host whose cores are busy a look
    at the store takes long, and nobody shall wait for it who need not.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answers: dict[K, tuple[float, asyncio.Future[V]]] = {}
        self._next: dict[K, tuple[float, asyncio.Future[V]]] = {}

    async def get(self, key: K, read: Callable[[], Awaitable[V]]) -> V:
        """The answer that is fresh or under way, or a new one. An error is told to all who wait, and not kept."""
        self._take_over(key)
        found = self._answers.get(key)
        age = time.monotonic() - found[0] if found else 0.0
        if found is None or age > self._seconds:
            found = self._next.pop(key, None) or _ask(read)
            self._keep(key, found)
        elif age > self._seconds / 2 and found[1].done() and key not in self._next:
            self._next[key] = _ask(read)
        try:
            return await asyncio.shield(found[1])
        except BaseException:
            if found[1].done() and self._answers.get(key) is found:
                del self._answers[key]
            raise

    def _take_over(self, key: K) -> None:
        """The new answer, once it is there. One that failed is dropped: whoever waits for the next one hears of it."""
        coming = self._next.get(key)
        if coming is not None and coming[1].done():
            del self._next[key]
            if not coming[1].cancelled() and coming[1].exception() is None:
                self._keep(key, coming)

    def _keep(self, key: K, answer: tuple[float, asyncio.Future[V]]) -> None:
        self._answers.pop(key, None)
        self._answers[key] = answer
        while len(self._answers) > MOST:
            oldest = next(iter(self._answers))
            del self._answers[oldest]
            self._next.pop(oldest, None)


def _ask(read: Callable[[], Awaitable[V]]) -> tuple[float, asyncio.Future[V]]:
    return time.monotonic(), asyncio.ensure_future(read())

"""What was read a moment ago: a question that many ask at once is put to the store once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST = 1024
"""Answers that are kept; the oldest go first."""


class Fresh(Generic[K, V]):
    """Answers that are true for `seconds` after they were asked for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answers: dict[K, tuple[float, asyncio.Future[V]]] = {}

    async def get(self, key: K, read: Callable[[], Awaitable[V]]) -> V:
        """The answer that is fresh or under way, or a new one. An error is told to all who wait, and not kept."""
        found = self._answers.get(key)
        if found is None or time.monotonic() - found[0] > self._seconds:
            found = (time.monotonic(), asyncio.ensure_future(read()))
            self._answers.pop(key, None)
            self._answers[key] = found
            while len(self._answers) > MOST:
                del self._answers[next(iter(self._answers))]
        try:
            return await asyncio.shield(found[1])
        except BaseException:
            if found[1].done() and self._answers.get(key) is found:
                del self._answers[key]
            raise

"""A cache with a time limit, whose concurrent readers share one read."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST = 1024
"""Entries that are kept; the oldest are dropped first."""


class TtlCache(Generic[K, V]):
    """Values that are valid for `seconds` after their read began.

    After half of that time the next `get` starts a new read in the background and still returns the old value: on a
    busy host a read of the store takes long, and no request should wait for it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._entries: dict[K, tuple[float, asyncio.Future[V]]] = {}
        self._refreshes: dict[K, tuple[float, asyncio.Future[V]]] = {}

    async def get(self, key: K, read: Callable[[], Awaitable[V]]) -> V:
        """The valid value, or the one that is being read, or a new one. All waiters get an error, which is not kept."""
        self._promote(key)
        found = self._entries.get(key)
        age = time.monotonic() - found[0] if found else 0.0
        if found is None or age > self._seconds:
            found = self._refreshes.pop(key, None) or _start(read)
            self._keep(key, found)
        elif age > self._seconds / 2 and found[1].done() and key not in self._refreshes:
            self._refreshes[key] = _start(read)
        try:
            return await asyncio.shield(found[1])
        except BaseException:
            if found[1].done() and self._entries.get(key) is found:
                del self._entries[key]
            raise

    def _promote(self, key: K) -> None:
        """Replace the entry by the background read once that is done. A failed read is dropped."""
        refresh = self._refreshes.get(key)
        if refresh is not None and refresh[1].done():
            del self._refreshes[key]
            if not refresh[1].cancelled() and refresh[1].exception() is None:
                self._keep(key, refresh)

    def _keep(self, key: K, entry: tuple[float, asyncio.Future[V]]) -> None:
        self._entries.pop(key, None)
        self._entries[key] = entry
        while len(self._entries) > MOST:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self._refreshes.pop(oldest, None)


def _start(read: Callable[[], Awaitable[V]]) -> tuple[float, asyncio.Future[V]]:
    return time.monotonic(), asyncio.ensure_future(read())

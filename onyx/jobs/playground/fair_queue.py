"""Turns at something that there is one of: in rounds, so that nobody waits for all that another has asked for."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairQueue:
    """One turn at a time. In each round everybody who waits has one; the turns of one owner come in order."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By owner, who is next first."""

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        if self._busy:
            await self._wait(owner)
        self._busy = True
        try:
            yield
        finally:
            # Whoever came during this turn goes before the rest of its owner's.
            if (line := self._waiting.pop(owner, None)) is not None:
                self._waiting[owner] = line
            self._call_next()

    async def _wait(self, owner: str) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(called)
        try:
            await called
        except asyncio.CancelledError:
            if not called.cancelled():  # called in the very moment in which it left: the turn is the next one's
                self._call_next()
            raise

    def _call_next(self) -> None:
        """The first owner's first; then that owner is the last. Those who left are passed over."""
        self._busy = False
        while self._waiting and not self._busy:
            owner = next(iter(self._waiting))
            line = self._waiting.pop(owner)
            called = line.popleft()
            if line:
                self._waiting[owner] = line
            if not called.done():
                called.set_result(None)
                self._busy = True

"""A fair queue for one resource: owners take turns, so that no owner waits for all requests of another."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairQueue:
    """One turn at a time. In each round every waiting owner has one turn; turns of one owner stay in order."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By owner. The first owner's first future is called next."""

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        if self._busy:
            await self._wait(owner)
        self._busy = True
        try:
            yield
        finally:
            # Owners that came during this turn go before the rest of this owner's turns.
            if (own := self._waiting.pop(owner, None)) is not None:
                self._waiting[owner] = own
            self._call_next()

    async def _wait(self, owner: str) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(called)
        try:
            await called
        except asyncio.CancelledError:
            if not called.cancelled():  # it was called just before it was cancelled: pass the turn on
                self._call_next()
            raise

    def _call_next(self) -> None:
        """Call the first owner's first future; that owner goes last. Cancelled ones are skipped."""
        self._busy = False
        while self._waiting and not self._busy:
            owner = next(iter(self._waiting))
            own = self._waiting.pop(owner)
            called = own.popleft()
            if own:
                self._waiting[owner] = own
            if not called.done():
                called.set_result(None)
                self._busy = True

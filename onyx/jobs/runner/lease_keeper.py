"""A lease that is kept while somebody works under it."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onyx.jobs.errors import LostAttempt, StoreUnavailableError
from onyx.jobs.models import ConfigRequest, Lease
from onyx.jobs.runner.supervisor import supervise
from onyx.jobs.status import StopRequest
from onyx.jobs.store.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 0.5
"""Between two tries to reach a store that is away."""


class LeaseKeeper:
    """Beats for a lease in the background, and hears what the job's owner wants."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.lease = lease
        self.request: StopRequest | None = None
        self.config: ConfigRequest | None = None
        self.lost = False
        """The store has said that the attempt is somebody else's. A store that is away has said nothing."""
        self.news = asyncio.Event()
        """Set when any of these changed."""
        self._store = store
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "LeaseKeeper":
        self._task = asyncio.create_task(supervise("a lease's heartbeat", self._keep))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def beat_now(self) -> None:
        """Ask the store at once: somebody has nudged."""
        self._due.set()

    def lose(self) -> None:
        """The store has refused a write: the attempt is no longer ours."""
        self.lost = True
        self.news.set()

    async def _keep(self) -> None:
        interval = min(self._store.lease_seconds / 6, 2.0)
        while not self.lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._due.wait()
            self._due.clear()
            await self._beat()

    async def _beat(self) -> None:
        try:
            heard = await self._store.attempts.heartbeat(self.lease)
        except LostAttempt:
            self.lose()
        except StoreUnavailableError:
            logger.warning("the store is away: training goes on", extra=vars(self.lease))
        else:
            if (heard.request, heard.config) != (self.request, self.config):
                self.request, self.config = heard.request, heard.config
                self.news.set()


async def retry_until_available(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call to the store until it has answered. Its refusals are answers."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(RETRY_SECONDS)

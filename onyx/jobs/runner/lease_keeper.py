"""Renews the lease of a claimed job while the runner works on it."""

import asyncio
import contextlib
import logging

from onyx.jobs.errors import LostAttempt, StoreUnavailableError
from onyx.jobs.models import ConfigRequest, Lease
from onyx.jobs.retry import supervise
from onyx.jobs.status import StopRequest
from onyx.jobs.store.store import Store

logger = logging.getLogger(__name__)


class LeaseKeeper:
    """Sends a heartbeat per interval. Each answer says what the job's owner has requested."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.lease = lease
        self.request: StopRequest | None = None
        self.config: ConfigRequest | None = None
        self.lost = False
        """The store has refused this attempt. A store that is unavailable has refused nothing."""
        self.news = asyncio.Event()
        """Set when `request`, `config` or `lost` has changed."""
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
        """Send a heartbeat at once: a client woke the runner and may have requested something."""
        self._due.set()

    def lose(self) -> None:
        """The store has refused a write: this runner must not go on with the attempt."""
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
            answer = await self._store.attempts.heartbeat(self.lease)
        except LostAttempt:
            self.lose()
        except StoreUnavailableError:
            logger.warning("the store is unavailable: training goes on", extra=vars(self.lease))
        else:
            if (answer.request, answer.config) != (self.request, self.config):
                self.request, self.config = answer.request, answer.config
                self.news.set()

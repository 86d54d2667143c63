"""Two ways to carry on: a call that is retried until the store answers, and a background task that is restarted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onyx.jobs.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 0.5
"""Between two calls to a store that is unavailable."""

RESTART_SECONDS = 1.0
"""Between a defect and the restart: a lease has to be renewed soon, and a lasting defect must not fill the log."""


async def retry_until_available(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call to the store until it answers. Any error but StoreUnavailableError is an answer."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(RETRY_SECONDS)


async def supervise(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a background task until it returns or is cancelled. One that raises is logged and started again."""
    while True:
        try:
            await run()
        except Exception:
            logger.exception("%s failed: starting it again", name, extra={"action": "task_restarted"})
        else:
            return
        await asyncio.sleep(RESTART_SECONDS)

"""Background tasks that live as long as what started them: one that breaks off is logged and started again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

RESTART_SECONDS = 1.0
"""Between a defect and the next try: a lease has to be renewed soon, and a lasting defect must not fill the log."""


async def supervise(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until it returns or this task is cancelled. Every try calls it anew."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception("%s broke off: starting again", name, extra={"action": "task_restarted"})
        else:
            return
        await asyncio.sleep(RESTART_SECONDS)

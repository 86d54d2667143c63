"""Takes the news of ended jobs to those who asked for it. A receiver that does not answer is tried for two days."""

import asyncio
import http.client
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from onyx.jobs.errors import StoreUnavailableError
from onyx.jobs.notify.signed_post import post
from onyx.jobs.store.store import Store
from onyx.jobs.store.webhooks import Delivery
from onyx.settings import Settings

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AT_ONCE = 8
"""Deliveries under way."""

GONE = 410
"""A receiver's way to say that it wants no more."""


class WebhookDelivery:
    """One per runner."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._url = settings.webhook_url
        self._secret = settings.webhook_secret.get_secret_value() if settings.webhook_secret else None
        self._allow_private = settings.webhook_allow_private
        self._room = asyncio.Semaphore(AT_ONCE)
        self._threads = ThreadPoolExecutor(AT_ONCE, "onyx-webhook")

    async def run(self) -> None:
        """Until it is cancelled. What is under way then is tried again by whoever comes next."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self.take_out(tasks)
                    await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def take_out(self, tasks: asyncio.TaskGroup) -> None:
        """Start all that is due."""
        try:
            while await self._store.webhooks.any_due():
                await self._room.acquire()  # before the claim: what is claimed is sent at once
                delivery = await self._claim()
                if delivery is None:
                    self._room.release()
                    return
                tasks.create_task(self._deliver(delivery))
        except StoreUnavailableError:
            logger.warning("the store is away: webhooks wait")

    async def _claim(self) -> Delivery | None:
        return await self._store.webhooks.claim(operator=self._url is not None and self._secret is not None)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            problem = await self._problem(delivery)
            if problem is None:
                await self._store.webhooks.report_delivered(delivery)
            elif await self._store.webhooks.retry_later(delivery):
                _log(logging.WARNING, delivery, f"{problem}; it is tried again")
            else:
                _log(logging.ERROR, delivery, f"{problem}; it is given up")
        except StoreUnavailableError:
            logger.warning("the store is away: webhook %s goes out again, told twice is better than not", delivery.id)
        except Exception:  # one that breaks must not keep the others from going out
            logger.exception("webhook %s broke off", delivery.id, extra={"action": "webhook_broken"})
        finally:
            self._room.release()

    async def _problem(self, delivery: Delivery) -> str | None:
        """Why it was not taken."""
        url = delivery.url or self._url
        if url is None or self._secret is None:
            return "there is no ONYX_WEBHOOK_SECRET to sign it with"
        sending = partial(post, url, message_of(delivery), self._secret, allow_private=self._allow_private)
        try:
            status = await asyncio.get_running_loop().run_in_executor(self._threads, sending)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None if 200 <= status < 300 or status == GONE else f"the receiver answered {status}"


def message_of(delivery: Delivery) -> dict[str, Any]:
    """The news, as OpenAI's client unwraps it."""
    return {
        "id": delivery.id,
        "object": "event",
        "created_at": int(delivery.created_at),
        "type": f"fine_tuning.job.{delivery.status}",
        "data": {"id": delivery.job_id},
    }


def _log(level: int, delivery: Delivery, why: str) -> None:
    # Not the URL: what is behind its question mark may be a secret.
    logger.log(level, "webhook %s about %s, try %d: %s", delivery.id, delivery.job_id, delivery.tries, why)

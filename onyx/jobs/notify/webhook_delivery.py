"""Delivers webhooks about ended jobs, at least once each. A receiver that does not answer is retried for two days."""

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

POLL_SECONDS = 1.0
CONCURRENCY = 8
"""Deliveries at a time."""

GONE = 410
"""A receiver answers this when it wants no more webhooks."""


class WebhookDelivery:
    """One per runner."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._url = settings.webhook_url
        self._secret = settings.webhook_secret.get_secret_value() if settings.webhook_secret else None
        self._allow_private = settings.webhook_allow_private
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._threads = ThreadPoolExecutor(CONCURRENCY, "onyx-webhook")

    async def run(self) -> None:
        """Deliver until cancelled. Deliveries that are cut off are retried by the next runner."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self.deliver_due(tasks)
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def deliver_due(self, tasks: asyncio.TaskGroup) -> None:
        """Start all deliveries that are due."""
        try:
            while await self._store.webhooks.any_due():
                await self._slots.acquire()  # before the claim, so that a claimed delivery is sent at once
                delivery = await self._claim()
                if delivery is None:
                    self._slots.release()
                    return
                tasks.create_task(self._deliver(delivery))
        except StoreUnavailableError:
            logger.warning("the store is unavailable: webhooks wait")

    async def _claim(self) -> Delivery | None:
        return await self._store.webhooks.claim(operator=self._url is not None and self._secret is not None)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            problem = await self._problem(delivery)
            if problem is None:
                await self._store.webhooks.report_delivered(delivery)
            elif await self._store.webhooks.retry_later(delivery):
                _log(logging.WARNING, delivery, f"{problem}; will retry")
            else:
                _log(logging.ERROR, delivery, f"{problem}; giving up")
        except StoreUnavailableError:
            logger.warning(
                "the store is unavailable: will send webhook %s again; delivery is at least once", delivery.id
            )
        except Exception:  # a defect must not stop the other deliveries
            logger.exception("webhook %s failed", delivery.id, extra={"action": "webhook_broken"})
        finally:
            self._slots.release()

    async def _problem(self, delivery: Delivery) -> str | None:
        """Send it; why it was not delivered, or None."""
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
    """The body, in the form that OpenAI's client unwraps."""
    return {
        "id": delivery.id,
        "object": "event",
        "created_at": int(delivery.created_at),
        "type": f"fine_tuning.job.{delivery.status}",
        "data": {"id": delivery.job_id},
    }


def _log(level: int, delivery: Delivery, why: str) -> None:
    # Not the URL: its query may contain a secret.
    logger.log(level, "webhook %s about %s, try %d: %s", delivery.id, delivery.job_id, delivery.tries, why)

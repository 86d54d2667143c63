import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from onyx.jobs.ids import JobKind
from onyx.jobs.notify.webhook_delivery import WebhookDelivery
from onyx.settings import Settings
from tests.jobs.store_harness import SPEC, StoreHarness
from tests.waiting import PATIENCE


class Receiver:
    """Answers 500 `busy` times, then 200."""

    def __init__(self, busy: int) -> None:
        self.busy = busy
        self.received: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        self.received.append(await reader.readexactly(size))
        status = b"500 Busy" if len(self.received) <= self.busy else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()


async def deliver_due(harness: StoreHarness, tmp_path: Path, **more: Any) -> None:
    """Deliver all that is due, and wait until it is done."""
    settings = Settings(home=tmp_path, webhook_secret=SecretStr("whsec_c2VjcmV0"), **more)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        await WebhookDelivery(harness.store, settings).deliver_due(tasks)


async def ended(harness: StoreHarness, url: str) -> str:
    job = await harness.store.jobs.create(SPEC.model_copy(update={"webhook_url": url}), "ann", JobKind.FINE_TUNING)
    await harness.store.control.cancel(job.id)
    return job.id


async def test_webhooks_reach_the_jobs_url_and_the_operators(harness: StoreHarness, tmp_path: Path) -> None:
    receiver = Receiver(busy=1)
    listening = await asyncio.start_server(receiver, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    async with listening:
        job_id = await ended(harness, url)
        await deliver_due(harness, tmp_path, webhook_url=url, webhook_allow_private=True)
        assert len(receiver.received) == 2
        assert not await harness.store.webhooks.any_due()
        harness.clock.ahead += 6
        assert await harness.store.webhooks.any_due()  # the one that got a 500
        await deliver_due(harness, tmp_path, webhook_url=url, webhook_allow_private=True)
    assert len(receiver.received) == 3
    assert all(job_id.encode() in body for body in receiver.received)
    harness.clock.ahead += 10 * 86400.0
    assert not await harness.store.webhooks.any_due()


async def test_a_receiver_with_a_private_address_gets_nothing(
    harness: StoreHarness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await ended(harness, "https://127.0.0.1/?key=hidden")
    await deliver_due(harness, tmp_path)
    assert "not on the public network" in caplog.text
    assert "hidden" not in caplog.text
    harness.clock.ahead += 6
    assert await harness.store.webhooks.any_due()

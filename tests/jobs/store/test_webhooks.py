from onyx.jobs.ids import JobKind
from onyx.jobs.status import JobStatus
from onyx.jobs.store.webhooks import BACKOFF, UNDER_WAY_SECONDS, Delivery
from tests.jobs.store_harness import SPEC, StoreHarness

HOOKED = SPEC.model_copy(update={"webhook_url": "https://example.com/hook"})


async def ended(harness: StoreHarness) -> str:
    job = await harness.store.jobs.create(HOOKED, "ann", JobKind.FINE_TUNING)
    await harness.store.control.cancel(job.id)
    return job.id


async def claim(harness: StoreHarness, *, operator: bool = False) -> Delivery:
    delivery = await harness.store.webhooks.claim(operator=operator)
    assert delivery is not None
    return delivery


async def test_the_end_of_a_job_is_sent_to_the_operator_and_to_the_jobs_own_receiver(harness: StoreHarness) -> None:
    job_id = await ended(harness)
    found = [await claim(harness, operator=True) for _ in range(2)]
    assert {delivery.url for delivery in found} == {None, "https://example.com/hook"}
    assert {(delivery.job_id, delivery.status, delivery.tries) for delivery in found} == {
        (job_id, JobStatus.CANCELLED, 1)
    }
    assert len({delivery.id for delivery in found}) == 2
    assert await harness.store.webhooks.claim(operator=True) is None


async def test_without_a_receiver_of_the_operator_its_webhooks_are_dropped(harness: StoreHarness) -> None:
    await ended(harness)
    delivery = await claim(harness)
    assert delivery.url is not None
    await harness.store.webhooks.report_delivered(delivery)
    harness.clock.ahead = 10 * 86400.0
    assert await harness.store.webhooks.claim(operator=True) is None
    assert not await harness.store.webhooks.any_due()


async def test_a_paused_job_sends_no_webhook(harness: StoreHarness) -> None:
    job = await harness.store.jobs.create(HOOKED, "ann", JobKind.FINE_TUNING)
    await harness.store.control.pause(job.id)
    assert not await harness.store.webhooks.any_due()


async def test_a_webhook_outlives_its_job(harness: StoreHarness) -> None:
    await harness.store.jobs.delete(await ended(harness))
    assert (await claim(harness)).status is JobStatus.CANCELLED


async def test_tries_are_further_and_further_apart_and_then_end(harness: StoreHarness) -> None:
    await ended(harness)
    first = await claim(harness)
    for wait in BACKOFF:
        assert await harness.store.webhooks.retry_later(first)
        assert not await harness.store.webhooks.any_due()
        harness.clock.ahead += wait + 1
        assert await harness.store.webhooks.any_due()
        first = await claim(harness)
    assert first.tries == len(BACKOFF) + 1
    assert not await harness.store.webhooks.retry_later(first)
    harness.clock.ahead += 10 * 86400.0
    assert not await harness.store.webhooks.any_due()


async def test_another_runner_delivers_what_a_dead_one_has_claimed(harness: StoreHarness) -> None:
    await ended(harness)
    first = await claim(harness)
    assert not await harness.store.webhooks.any_due()
    harness.clock.ahead += UNDER_WAY_SECONDS + 1
    again = await claim(harness)
    assert (again.id, again.tries) == (first.id, 2)

from onyx.jobs.ids import JobKind
from onyx.jobs.status import JobStatus
from onyx.jobs.store.webhooks import BACKOFF, UNDER_WAY_SECONDS, Delivery
from tests.jobs.world import SPEC, World

HOOKED = SPEC.model_copy(update={"webhook_url": "https://example.com/hook"})


async def ended(world: World) -> str:
    job = await world.store.jobs.create(HOOKED, "ann", JobKind.FINE_TUNING)
    await world.store.requests.cancel(job.id)
    return job.id


async def claim(world: World, *, operator: bool = False) -> Delivery:
    delivery = await world.store.webhooks.claim(operator=operator)
    assert delivery is not None
    return delivery


async def test_the_end_of_a_job_is_news_for_two(world: World) -> None:
    job_id = await ended(world)
    found = [await claim(world, operator=True) for _ in range(2)]
    assert {delivery.url for delivery in found} == {None, "https://example.com/hook"}
    assert {(delivery.job_id, delivery.status, delivery.tries) for delivery in found} == {
        (job_id, JobStatus.CANCELLED, 1)
    }
    assert len({delivery.id for delivery in found}) == 2
    assert await world.store.webhooks.claim(operator=True) is None


async def test_without_an_operator_who_listens_his_are_dropped(world: World) -> None:
    await ended(world)
    delivery = await claim(world)
    assert delivery.url is not None
    await world.store.webhooks.delivered(delivery)
    world.clock.ahead = 10 * 86400.0
    assert await world.store.webhooks.claim(operator=True) is None
    assert not await world.store.webhooks.due()


async def test_a_job_that_goes_on_is_no_news(world: World) -> None:
    job = await world.store.jobs.create(HOOKED, "ann", JobKind.FINE_TUNING)
    await world.store.requests.pause(job.id)
    assert not await world.store.webhooks.due()


async def test_news_outlives_its_job(world: World) -> None:
    await world.store.jobs.delete(await ended(world))
    assert (await claim(world)).status is JobStatus.CANCELLED


async def test_it_is_tried_again_later_and_later_and_then_given_up(world: World) -> None:
    await ended(world)
    first = await claim(world)
    for wait in BACKOFF:
        assert await world.store.webhooks.not_delivered(first)
        assert not await world.store.webhooks.due()
        world.clock.ahead += wait + 1
        assert await world.store.webhooks.due()
        first = await claim(world)
    assert first.tries == len(BACKOFF) + 1
    assert not await world.store.webhooks.not_delivered(first)
    world.clock.ahead += 10 * 86400.0
    assert not await world.store.webhooks.due()


async def test_a_courier_that_died_is_replaced(world: World) -> None:
    await ended(world)
    first = await claim(world)
    assert not await world.store.webhooks.due()
    world.clock.ahead += UNDER_WAY_SECONDS + 1
    again = await claim(world)
    assert (again.id, again.tries) == (first.id, 2)

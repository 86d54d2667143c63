"""Several connections at once: each store here has an engine of its own."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onyx.jobs.errors import LostAttempt, QuotaExceededError
from onyx.jobs.ids import JobKind
from onyx.jobs.models import RunnerDevice
from onyx.jobs.status import JobStatus
from onyx.jobs.store.store import Store
from tests.jobs.store_harness import CPU, DEVICES, RESULT, SPEC, StoreHarness, line


@asynccontextmanager
async def several(harness: StoreHarness, count: int) -> AsyncIterator[list[Store]]:
    stores = [harness.open_again() for _ in range(count)]
    yield stores
    for store in stores:
        await store.close()


async def test_of_many_runners_that_claim_one_job_one_gets_it(harness: StoreHarness) -> None:
    async with several(harness, 4) as stores:
        runners = [await harness.runner(f"host-{place}") for place in range(4)]
        for _ in range(3):
            job = await harness.queued()
            claims = await asyncio.gather(
                *(store.claims.claim_queued(runner, DEVICES) for store, runner in zip(stores, runners, strict=True))
            )
            (won,) = [claimed for claimed in claims if claimed is not None]
            assert won.job.id == job.id
            await harness.store.attempts.report_cancelled(won.lease)


async def test_each_job_runs_once_and_no_device_is_lent_twice(harness: StoreHarness) -> None:
    jobs = [(await harness.queued(f"owner-{number % 3}", devices=1 + number % 2)).id for number in range(8)]
    devices = [RunnerDevice(name=f"cpu:{number}", kind=CPU) for number in range(3)]
    in_use: Counter[str] = Counter()
    done: list[str] = []

    async def work(store: Store, runner: str) -> None:
        while len(done) < len(jobs):
            claimed = await store.claims.claim_queued(runner, devices)
            if claimed is None:
                await asyncio.sleep(0.02)
                continue
            in_use.update(device.name for device in claimed.devices)
            assert max(in_use.values()) == 1
            await store.attempts.heartbeat(claimed.lease)
            in_use.subtract(device.name for device in claimed.devices)  # before the store lends them again
            await store.attempts.report_succeeded(claimed.lease, RESULT)
            done.append(claimed.job.id)

    async with several(harness, 3) as stores:
        runners = [await harness.runner(pid=pid) for pid in range(3)]  # one host: they share the devices
        await asyncio.gather(*map(work, stores, runners))
    assert sorted(done) == sorted(jobs)


async def test_limits_hold_between_concurrent_claims(harness: StoreHarness) -> None:
    for _ in range(4):
        await harness.queued("ann")
    async with several(harness, 4) as stores:
        runners = [await harness.runner(f"host-{place}") for place in range(4)]
        pairs = zip(stores, runners, strict=True)
        claims = await asyncio.gather(
            *(store.claims.claim_queued(runner, DEVICES, max_per_owner=2) for store, runner in pairs)
        )
    assert sum(claimed is not None for claimed in claims) == 2


async def test_one_key_sent_many_times_at_once_creates_one_job(harness: StoreHarness) -> None:
    async with several(harness, 4) as stores:
        jobs = await asyncio.gather(
            *(store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, idempotency_key="k") for store in stores)
        )
    assert len({job.id for job in jobs}) == 1


async def test_a_quota_holds_between_concurrent_requests(harness: StoreHarness) -> None:
    async with several(harness, 4) as stores:
        made = await asyncio.gather(
            *(store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, max_open=2) for store in stores),
            return_exceptions=True,
        )
    assert sum(isinstance(each, QuotaExceededError) for each in made) == 2


async def test_a_cancellation_and_a_claim_agree_on_who_was_first(harness: StoreHarness) -> None:
    runner = await harness.runner()
    async with several(harness, 2) as (owner, other):
        for _ in range(5):
            job = await harness.queued()
            cancelled, claimed = await asyncio.gather(
                owner.control.cancel(job.id), other.claims.claim_queued(runner, DEVICES)
            )
            assert (cancelled.status is JobStatus.CANCELLED) == (claimed is None)
            if claimed is not None:
                await harness.store.attempts.report_cancelled(claimed.lease)


async def test_a_reader_that_follows_events_misses_none(harness: StoreHarness) -> None:
    claimed = await harness.running()
    job_id = claimed.job.id
    seen: list[int] = []

    async def write(store: Store, first: int) -> None:
        for number in range(first, 61, 3):
            await store.events.mirror(claimed.lease, [line(number)])

    async def follow(store: Store) -> None:
        while len(seen) < 60 + 3:
            seen.extend(event.seq for event in await store.events.list(job_id, after=seen[-1] if seen else 0))

    async with several(harness, 4) as stores:
        await asyncio.gather(follow(stores[3]), *(write(stores[place], place + 1) for place in range(3)))
    assert seen == list(range(1, 64))


async def test_an_end_and_a_takeover_agree_on_who_was_first(harness: StoreHarness) -> None:
    holding, heir = await harness.runner(pid=1), await harness.runner(pid=2)
    claimed = await harness.running(runner=holding)
    (record,) = [runner for runner in await harness.store.runners.list("alpha") if runner.id == holding]
    async with several(harness, 2) as (zombie, other):
        ended, lost = await asyncio.gather(
            zombie.attempts.report_succeeded(claimed.lease, RESULT),
            other.runners.replace_dead(heir, record),
            return_exceptions=True,
        )
    assert not isinstance(lost, BaseException)
    assert isinstance(ended, LostAttempt) == (len(lost) == 1)

"""Shared reads, expiry, errors and the background recache of the cache."""

import asyncio

import pytest

from onyx.api.ttl_cache import MOST, TtlCache


def test_concurrent_gets_share_one_read() -> None:
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        return reads

    async def story() -> None:
        cache: TtlCache[str, int] = TtlCache(60.0)
        assert await asyncio.gather(*(cache.get("a", read) for _ in range(10))) == [1] * 10
        assert await cache.get("a", read) == 1
        assert await cache.get("b", read) == 2

    asyncio.run(story())


def test_an_expired_value_is_read_again() -> None:
    numbers = iter(range(10))

    async def read() -> int:
        return next(numbers)

    async def story() -> None:
        cache: TtlCache[None, int] = TtlCache(-1.0)
        assert [await cache.get(None, read) for _ in range(3)] == [0, 1, 2]

    asyncio.run(story())


def test_all_waiters_get_an_error_and_it_is_not_kept() -> None:
    async def fail() -> int:
        raise OSError("away")

    async def read() -> int:
        return 1

    async def story() -> None:
        cache: TtlCache[None, int] = TtlCache(60.0)
        results = await asyncio.gather(*(cache.get(None, fail) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(each, OSError) for each in results)
        assert await cache.get(None, read) == 1

    asyncio.run(story())


def test_a_cancelled_waiter_does_not_cancel_the_read() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def read() -> int:
            await gate.wait()
            return 1

        cache: TtlCache[None, int] = TtlCache(60.0)
        first, second = (asyncio.create_task(cache.get(None, read)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.set()
        assert await second == 1

    asyncio.run(story())


def test_it_keeps_a_limited_number_of_values() -> None:
    async def read() -> int:
        return 1

    async def story() -> int:
        cache: TtlCache[int, int] = TtlCache(60.0)
        for key in range(MOST + 10):
            await cache.get(key, read)
        return len(cache._entries)

    assert asyncio.run(story()) == MOST


def test_no_get_waits_for_the_refresh_while_the_value_is_valid() -> None:
    async def story() -> None:
        numbers = iter(range(10))
        gate = asyncio.Event()
        gate.set()

        async def read() -> int:
            await gate.wait()
            return next(numbers)

        cache: TtlCache[None, int] = TtlCache(60.0)
        assert await cache.get(None, read) == 0
        began, value = cache._entries[None]
        cache._entries[None] = (began - 40.0, value)  # past half of its time, still valid
        gate.clear()
        assert [await cache.get(None, read) for _ in range(3)] == [0, 0, 0]
        gate.set()
        await asyncio.gather(*(refresh for _, refresh in cache._refreshes.values()))
        assert await cache.get(None, read) == 1

    asyncio.run(story())

"""Answers that many ask for at once."""

import asyncio

import pytest

from onyx.api.ttl_cache import MOST, TtlCache


def test_many_who_ask_at_once_are_one_question() -> None:
    asked = 0

    async def read() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return asked

    async def story() -> None:
        fresh: TtlCache[str, int] = TtlCache(60.0)
        assert await asyncio.gather(*(fresh.get("a", read) for _ in range(10))) == [1] * 10
        assert await fresh.get("a", read) == 1
        assert await fresh.get("b", read) == 2

    asyncio.run(story())


def test_what_is_old_is_asked_again() -> None:
    numbers = iter(range(10))

    async def read() -> int:
        return next(numbers)

    async def story() -> None:
        fresh: TtlCache[None, int] = TtlCache(-1.0)
        assert [await fresh.get(None, read) for _ in range(3)] == [0, 1, 2]

    asyncio.run(story())


def test_an_error_is_told_to_all_and_forgotten() -> None:
    async def fail() -> int:
        raise OSError("away")

    async def read() -> int:
        return 1

    async def story() -> None:
        fresh: TtlCache[None, int] = TtlCache(60.0)
        told = await asyncio.gather(*(fresh.get(None, fail) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(each, OSError) for each in told)
        assert await fresh.get(None, read) == 1

    asyncio.run(story())


def test_one_who_gives_up_takes_the_answer_from_nobody() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def read() -> int:
            await gate.wait()
            return 1

        fresh: TtlCache[None, int] = TtlCache(60.0)
        first, second = (asyncio.create_task(fresh.get(None, read)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.set()
        assert await second == 1

    asyncio.run(story())


def test_it_does_not_grow_without_end() -> None:
    async def read() -> int:
        return 1

    async def story() -> int:
        fresh: TtlCache[int, int] = TtlCache(60.0)
        for key in range(MOST + 10):
            await fresh.get(key, read)
        return len(fresh._answers)

    assert asyncio.run(story()) == MOST


def test_nobody_waits_for_the_next_answer_while_the_last_one_is_good() -> None:
    async def story() -> None:
        numbers = iter(range(10))
        gate = asyncio.Event()
        gate.set()

        async def read() -> int:
            await gate.wait()
            return next(numbers)

        fresh: TtlCache[None, int] = TtlCache(60.0)
        assert await fresh.get(None, read) == 0
        asked, answer = fresh._answers[None]
        fresh._answers[None] = (asked - 40.0, answer)  # past its half, still good
        gate.clear()
        assert [await fresh.get(None, read) for _ in range(3)] == [0, 0, 0]
        gate.set()
        await asyncio.gather(*(coming for _, coming in fresh._next.values()))
        assert await fresh.get(None, read) == 1

    asyncio.run(story())

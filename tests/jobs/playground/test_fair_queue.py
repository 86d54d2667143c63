"""Whose turn it is, seen through who had one."""

import asyncio

import pytest

from onyx.jobs.playground.fair_queue import FairQueue
from tests.waiting import PATIENCE


class Day:
    """Turns that end when they are told to, and the order in which they began."""

    def __init__(self) -> None:
        self.rounds = FairQueue()
        self.began: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        """Each begins with its owner's letter."""
        for name in names:
            self.gates[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._have(name))
        await self.settle()

    async def leave(self, name: str) -> None:
        self.tasks[name].cancel()
        await self.settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self.gates[name].set()
            await self.tasks[name]
            await self.settle()

    async def settle(self) -> None:
        """Everybody who can go on has gone on."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def _have(self, name: str) -> None:
        async with self.rounds.turn(name[0]):
            self.began.append(name)
            await self.gates[name].wait()


async def test_one_of_each_in_a_round() -> None:
    day = Day()
    await day.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert day.began == ["a1"]
    await day.end("a1", "b1", "c1", "a2", "b2", "a3", "a4")
    assert day.began == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    await day.come("b3")
    assert day.began[-1] == "b3"  # nobody else is there


async def test_whoever_comes_during_a_turn_goes_before_its_owners_next() -> None:
    day = Day()
    await day.come("a1", "a2", "a3")
    await day.end("a1")
    await day.come("b1")
    await day.end("a2")
    assert day.began == ["a1", "a2", "b1"]
    await day.end("b1", "a3")


async def test_who_leaves_is_passed_over() -> None:
    day = Day()
    await day.come("a1", "b1", "b2", "c1")
    await day.leave("b1")
    await day.leave("c1")
    await day.end("a1", "b2")
    assert day.began == ["a1", "b2"]
    await day.come("a2")
    await day.leave("a2")  # in the middle of its turn
    await day.come("b3")
    assert day.began == ["a1", "b2", "a2", "b3"]


async def test_a_turn_that_is_given_to_one_who_leaves_is_the_next_ones() -> None:
    day = Day()
    async with day.rounds.turn("a"):
        await day.come("b1", "c1")
    assert day.began == []  # b1 is called, and has not gone on yet
    await day.leave("b1")
    assert day.began == ["c1"]


async def test_a_turn_that_fails_is_over() -> None:
    rounds = FairQueue()
    with pytest.raises(ValueError, match="mine"):
        async with rounds.turn("a"):
            raise ValueError("mine")
    async with asyncio.timeout(PATIENCE), rounds.turn("b"):
        pass

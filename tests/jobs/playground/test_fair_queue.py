"""The order of turns."""

import asyncio

import pytest

from onyx.jobs.playground.fair_queue import FairQueue
from tests.waiting import PATIENCE


class Turns:
    """Turns that a test ends, and the order in which they began."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.began: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def request(self, *names: str) -> None:
        """Request turns. A name begins with its owner's letter."""
        for name in names:
            self.gates[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._have(name))
        await self.settle()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await self.settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self.gates[name].set()
            await self.tasks[name]
            await self.settle()

    async def settle(self) -> None:
        """Let every task run until it waits."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def _have(self, name: str) -> None:
        async with self.queue.turn(name[0]):
            self.began.append(name)
            await self.gates[name].wait()


async def test_one_of_each_in_a_round() -> None:
    turns = Turns()
    await turns.request("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert turns.began == ["a1"]
    await turns.end("a1", "b1", "c1", "a2", "b2", "a3", "a4")
    assert turns.began == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    await turns.request("b3")
    assert turns.began[-1] == "b3"  # no other turn is waiting


async def test_an_owner_that_comes_during_a_turn_goes_before_that_owners_next() -> None:
    turns = Turns()
    await turns.request("a1", "a2", "a3")
    await turns.end("a1")
    await turns.request("b1")
    await turns.end("a2")
    assert turns.began == ["a1", "a2", "b1"]
    await turns.end("b1", "a3")


async def test_cancelled_turns_are_skipped() -> None:
    turns = Turns()
    await turns.request("a1", "b1", "b2", "c1")
    await turns.cancel("b1")
    await turns.cancel("c1")
    await turns.end("a1", "b2")
    assert turns.began == ["a1", "b2"]
    await turns.request("a2")
    await turns.cancel("a2")  # in the middle of its turn
    await turns.request("b3")
    assert turns.began == ["a1", "b2", "a2", "b3"]


async def test_a_turn_given_to_a_cancelled_task_is_passed_on() -> None:
    turns = Turns()
    async with turns.queue.turn("a"):
        await turns.request("b1", "c1")
    assert turns.began == []  # b1 is called, and its task has not run yet
    await turns.cancel("b1")
    assert turns.began == ["c1"]


async def test_a_turn_that_raises_is_over() -> None:
    queue = FairQueue()
    with pytest.raises(ValueError, match="mine"):
        async with queue.turn("a"):
            raise ValueError("mine")
    async with asyncio.timeout(PATIENCE), queue.turn("b"):
        pass

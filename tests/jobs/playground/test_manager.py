"""One model in memory, a queue, and a process that comes and goes. Real processes, forked from one warm template."""

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onyx.jobs.launch.fork_launcher import ForkLauncher
from onyx.jobs.launch.launch_service import LaunchClient, LaunchService
from onyx.jobs.launch.launcher import Child, ChildSpec, Launcher
from onyx.jobs.playground.manager import AnswerStream, Playground, PlaygroundModel
from onyx.jobs.process_identity import this_process
from onyx.jobs.store.store import Store
from onyx.memory.devices.cpu import _kilobytes
from onyx.settings import Settings
from onyx.training.contract.attempt import Failure
from onyx.training.contract.chat_protocol import GenerateRequest
from onyx.training.models.tiny import make_tiny
from tests.jobs.store_harness import StoreHarness
from tests.training.job import make_model
from tests.waiting import PATIENCE

TINY = PlaygroundModel("onyx/tiny")
SLOW = PlaygroundModel("num_attention_heads=64-num_key_value_heads=64-head_dim=64")
"""`make_wide`'s: so slow that a long answer is never whole before a test has interrupted it."""

LONG = GenerateRequest(messages=[{"role": "user", "content": "hello"}], max_tokens=1900, temperature=0)
SHORT = LONG.model_copy(update={"max_tokens": 4})
ROOM = 20 * 2**20
"""Of memory: enough for a short answer of a model whose cache takes 128 KB a token, not for a long one."""

Story = Callable[[Playground, "Watched"], Coroutine[Any, Any, None]]


class Watched:
    """A launcher that remembers what it started."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.started: list[Child] = []

    async def start(self, work: ChildSpec) -> Child:
        child = await self._launcher.start(work)
        self.started.append(child)
        return child

    async def close(self) -> None:
        """The template stays for the next test."""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def template(loop: asyncio.Runner) -> Iterator[ForkLauncher]:
    launcher = ForkLauncher()
    loop.run(launcher.warm())
    yield launcher
    loop.run(launcher.close())


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the slow model is."""
    made = make_wide(tmp_path_factory.mktemp("slow"))
    assert made.name == SLOW.name
    return made.parent


@pytest.fixture
def play(loop: asyncio.Runner, template: ForkLauncher, tmp_path: Path) -> Callable[..., None]:
    def play(story: Story, **more: Any) -> None:
        settings = Settings.model_validate({"home": tmp_path, "cpu_memory": "1GB"} | more)

        async def run() -> None:
            async with trying(settings, template) as (trier, watched):
                await asyncio.wait_for(story(trier, watched), PATIENCE)
            for child in watched.started:
                await asyncio.wait_for(child.wait(), PATIENCE)  # nobody is left behind

        loop.run(run())

    return play


@asynccontextmanager
async def trying(settings: Settings, launcher: Launcher) -> AsyncIterator[tuple[Playground, Watched]]:
    store = await Store.open(settings.store_url, lease_seconds=30)
    watched = Watched(launcher)
    trier = Playground(settings, store, watched)
    try:
        yield trier, watched
    finally:
        await trier.close()
        await store.close()


async def whole(talk: AnswerStream) -> str:
    text = ""
    while (said := await talk.next()).end is None:
        assert said.failure is None, said.failure
        text += said.text
    return text


async def failure(talk: AnswerStream) -> Failure:
    while (said := await talk.next()).failure is None:
        assert said.end is None, "no failure"
    return said.failure


def test_one_process_answers_in_turn(play: Callable[..., None]) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        talks = [trier.ask(TINY, SHORT) for _ in range(4)]
        assert len({await whole(talk) for talk in talks}) == 1
        assert len(watched.started) == 1

    play(story)


def test_another_model_takes_the_place(play: Callable[..., None], tmp_path: Path) -> None:
    root = tmp_path / "root"
    other = PlaygroundModel(make_tiny(root).name)

    async def story(trier: Playground, watched: Watched) -> None:
        first = await whole(trier.ask(TINY, SHORT))
        assert await whole(trier.ask(other, SHORT)) == first
        assert len(watched.started) == 2
        await asyncio.wait_for(watched.started[0].wait(), PATIENCE)

    play(story, model_root=root)


def test_a_full_queue_refuses(play: Callable[..., None], slow: Path) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        first, second = trier.ask(SLOW, LONG), trier.ask(SLOW, SHORT)
        assert (await failure(trier.ask(SLOW, SHORT))).code == "queue_full"
        first.close()
        await whole(second)
        await whole(trier.ask(SLOW, SHORT))

    play(story, try_queue=2, model_root=slow)


def test_an_owner_who_asks_much_keeps_nobody_waiting(play: Callable[..., None]) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        greedy = [trier.ask(TINY, SHORT, "ann") for _ in range(3)]
        refused = await failure(trier.ask(TINY, SHORT, "ann"))
        assert refused.code == "queue_full"
        assert refused.message.startswith("3 questions of yours wait already")
        order: list[str] = []
        await asyncio.gather(
            *(ended(talk, "ann", order) for talk in greedy), ended(trier.ask(TINY, SHORT, "bob"), "bob", order)
        )
        assert order == ["ann", "bob", "ann", "ann"]
        crowd = [trier.ask(TINY, SHORT, name) for name in ("ann", "bob", "cid", "dan")]
        assert (await failure(trier.ask(TINY, SHORT, "eve"))).message.startswith("4 questions wait already")
        for talk in crowd:
            await whole(talk)

    play(story, try_queue=4, try_queue_per_owner=3)


async def ended(talk: AnswerStream, name: str, order: list[str]) -> None:
    await whole(talk)
    order.append(name)


def make_wide(home: Path) -> Path:
    """A model whose cache takes 128 KB a token."""
    return make_model(home, num_attention_heads=64, num_key_value_heads=64, head_dim=64)


def limit_growth(pid: int, more: int) -> None:
    """A real limit, and a low one: so many bytes more than the process has now."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    resource.prlimit(pid, resource.RLIMIT_DATA, (_kilobytes(Path(f"/proc/{pid}/status"), "VmData") + more, hard))


def test_running_out_of_memory_costs_that_answer_only(play: Callable[..., None], tmp_path: Path) -> None:
    wide = PlaygroundModel(make_wide(tmp_path).name)

    async def story(trier: Playground, watched: Watched) -> None:
        before = await whole(trier.ask(wide, SHORT))
        limit_growth(watched.started[0].pid, ROOM)
        talk, waiting = trier.ask(wide, LONG), trier.ask(wide, SHORT)
        assert (await talk.next()).text
        told = await failure(talk)
        assert told.code == "no_memory"
        assert "not enough memory for an answer this long" in told.message
        assert await whole(waiting) == before
        assert len(watched.started) == 2  # a new process looks anew at what is free
        await watched.started[0].wait()

    play(story, model_root=tmp_path / "models")


def test_a_talk_that_is_closed_stops_the_model(play: Callable[..., None], slow: Path) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        talk = trier.ask(SLOW, LONG)
        assert (await talk.next()).text
        talk.close()
        await whole(trier.ask(SLOW, SHORT))
        assert talk.lines.qsize() < LONG.max_tokens // 2
        assert len(watched.started) == 1  # the same process: it was told to stop, and did

    play(story, model_root=slow)


def test_one_that_waits_can_be_closed(play: Callable[..., None]) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        first, second, third = (trier.ask(TINY, SHORT) for _ in range(3))
        second.close()
        await whole(first)
        await whole(third)

    play(story)


def test_a_killed_process_is_replaced(play: Callable[..., None], slow: Path) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        talk = trier.ask(SLOW, LONG)
        assert (await talk.next()).text
        os.kill(watched.started[0].pid, signal.SIGKILL)
        assert (await failure(talk)).code == "model_unloaded"
        await whole(trier.ask(SLOW, SHORT))
        os.kill(watched.started[1].pid, signal.SIGKILL)  # while nobody asks it anything: the next does not notice
        await whole(trier.ask(SLOW, SHORT))
        assert len(watched.started) == 3

    play(story, model_root=slow)


def test_an_idle_process_leaves(play: Callable[..., None]) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        await whole(trier.ask(TINY, SHORT))
        await watched.started[0].wait()
        await whole(trier.ask(TINY, SHORT))
        assert len(watched.started) == 2

    play(story, try_idle_seconds=0.2)


def test_it_gives_way_to_a_training_that_begins(play: Callable[..., None], tmp_path: Path, slow: Path) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        talk = trier.ask(SLOW, LONG)
        assert (await talk.next()).text
        harness = StoreHarness(f"sqlite+aiosqlite:///{tmp_path / 'onyx.db'}")
        try:
            await harness.running(runner=await harness.runner(host=this_process().host))
        finally:
            await harness.store.close()
        assert (await failure(talk)).code == "model_unloaded"
        await whole(trier.ask(SLOW, SHORT))  # there is room beside a training of so little
        assert len(watched.started) == 2

    play(story, model_root=slow)


def test_through_the_runner(
    loop: asyncio.Runner, template: ForkLauncher, tmp_path: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner starts it on somebody's behalf: one on a host, and gone with a word."""
    monkeypatch.setattr("onyx.jobs.playground.manager.LOOK_SECONDS", 3600.0)  # so that nobody else ends it
    settings = Settings(home=tmp_path, cpu_memory="1GB", try_idle_seconds=0.5, model_root=slow)

    async def story() -> None:
        settings.run_dir.mkdir()
        errands = LaunchService(settings.run_dir, template)
        await errands.open()
        launcher = LaunchClient(settings.run_dir)
        async with trying(settings, launcher) as (one, started), trying(settings, launcher) as (other, waiting):
            talk = one.ask(SLOW, LONG)
            assert (await talk.next()).text
            second = other.ask(SLOW, SHORT)
            errands.end_chats()
            assert (await failure(talk)).code == "model_unloaded"
            await whole(second)
            third = one.ask(SLOW, SHORT)  # waits until the other process has been idle for long enough
            await whole(third)
            assert (len(started.started), len(waiting.started)) == (2, 1)
        errands.close()

    loop.run(asyncio.wait_for(story(), PATIENCE))


def test_whoever_takes_too_long_is_told(play: Callable[..., None], slow: Path) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        assert (await failure(trier.ask(SLOW, LONG))).code == "timeout"

    play(story, try_seconds=0.5, model_root=slow)


def test_a_model_that_is_not_there(play: Callable[..., None]) -> None:
    async def story(trier: Playground, watched: Watched) -> None:
        assert (await failure(trier.ask(PlaygroundModel("no such model"), SHORT))).code == "model_not_found"
        await whole(trier.ask(TINY, SHORT))

    play(story)

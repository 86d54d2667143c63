"""One model in memory, a queue, and chat processes that start and end. Real processes, forked from one fork server."""

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
"""`make_wide`'s: so slow that a long answer never ends before a test interrupts it."""

LONG = GenerateRequest(messages=[{"role": "user", "content": "hello"}], max_tokens=1900, temperature=0)
SHORT = LONG.model_copy(update={"max_tokens": 4})
ROOM = 20 * 2**20
"""Of memory: enough for a short answer of a model whose cache takes 128 KB a token, not for a long one."""

Story = Callable[[Playground, "RecordingLauncher"], Coroutine[Any, Any, None]]


class RecordingLauncher:
    """Records what it starts."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.started: list[Child] = []

    async def start(self, spec: ChildSpec) -> Child:
        child = await self._launcher.start(spec)
        self.started.append(child)
        return child

    async def close(self) -> None:
        """The fork server stays for the next test."""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def forks(loop: asyncio.Runner) -> Iterator[ForkLauncher]:
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
def play(loop: asyncio.Runner, forks: ForkLauncher, tmp_path: Path) -> Callable[..., None]:
    def play(story: Story, **more: Any) -> None:
        settings = Settings.model_validate({"home": tmp_path, "cpu_memory": "1GB"} | more)

        async def run() -> None:
            async with opened(settings, forks) as (playground, recorder):
                await asyncio.wait_for(story(playground, recorder), PATIENCE)
            for child in recorder.started:
                await asyncio.wait_for(child.wait(), PATIENCE)  # no child is left

        loop.run(run())

    return play


@asynccontextmanager
async def opened(settings: Settings, launcher: Launcher) -> AsyncIterator[tuple[Playground, RecordingLauncher]]:
    store = await Store.open(settings.store_url, lease_seconds=30)
    recorder = RecordingLauncher(launcher)
    playground = Playground(settings, store, recorder)
    try:
        yield playground, recorder
    finally:
        await playground.close()
        await store.close()


async def whole(answer: AnswerStream) -> str:
    text = ""
    while (reply := await answer.next()).end is None:
        assert reply.failure is None, reply.failure
        text += reply.text
    return text


async def failure(answer: AnswerStream) -> Failure:
    while (reply := await answer.next()).failure is None:
        assert reply.end is None, "no failure"
    return reply.failure


def test_one_process_answers_in_turn(play: Callable[..., None]) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        answers = [playground.ask(TINY, SHORT) for _ in range(4)]
        assert len({await whole(answer) for answer in answers}) == 1
        assert len(recorder.started) == 1

    play(story)


def test_another_model_replaces_the_first(play: Callable[..., None], tmp_path: Path) -> None:
    root = tmp_path / "root"
    other = PlaygroundModel(make_tiny(root).name)

    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        first = await whole(playground.ask(TINY, SHORT))
        assert await whole(playground.ask(other, SHORT)) == first
        assert len(recorder.started) == 2
        await asyncio.wait_for(recorder.started[0].wait(), PATIENCE)

    play(story, model_root=root)


def test_a_full_queue_refuses(play: Callable[..., None], slow: Path) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        first, second = playground.ask(SLOW, LONG), playground.ask(SLOW, SHORT)
        assert (await failure(playground.ask(SLOW, SHORT))).code == "queue_full"
        first.close()
        await whole(second)
        await whole(playground.ask(SLOW, SHORT))

    play(story, try_queue=2, model_root=slow)


def test_an_owner_with_many_requests_does_not_delay_others(play: Callable[..., None]) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        greedy = [playground.ask(TINY, SHORT, "ann") for _ in range(3)]
        refused = await failure(playground.ask(TINY, SHORT, "ann"))
        assert refused.code == "queue_full"
        assert refused.message.startswith("3 questions of yours wait already")
        order: list[str] = []
        await asyncio.gather(
            *(note_end(answer, "ann", order) for answer in greedy),
            note_end(playground.ask(TINY, SHORT, "bob"), "bob", order),
        )
        assert order == ["ann", "bob", "ann", "ann"]
        crowd = [playground.ask(TINY, SHORT, name) for name in ("ann", "bob", "cid", "dan")]
        assert (await failure(playground.ask(TINY, SHORT, "eve"))).message.startswith("4 questions wait already")
        for answer in crowd:
            await whole(answer)

    play(story, try_queue=4, try_queue_per_owner=3)


async def note_end(answer: AnswerStream, name: str, order: list[str]) -> None:
    await whole(answer)
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

    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        before = await whole(playground.ask(wide, SHORT))
        limit_growth(recorder.started[0].pid, ROOM)
        answer, waiting = playground.ask(wide, LONG), playground.ask(wide, SHORT)
        assert (await answer.next()).text
        failed = await failure(answer)
        assert failed.code == "no_memory"
        assert "not enough memory for an answer this long" in failed.message
        assert await whole(waiting) == before
        assert len(recorder.started) == 2  # a new process, with a new look at free memory
        await recorder.started[0].wait()

    play(story, model_root=tmp_path / "models")


def test_an_answer_that_is_closed_stops_the_model(play: Callable[..., None], slow: Path) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        answer = playground.ask(SLOW, LONG)
        assert (await answer.next()).text
        answer.close()
        await whole(playground.ask(SLOW, SHORT))
        assert answer.lines.qsize() < LONG.max_tokens // 2
        assert len(recorder.started) == 1  # the same process: it stopped generating

    play(story, model_root=slow)


def test_a_request_that_waits_can_be_closed(play: Callable[..., None]) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        first, second, third = (playground.ask(TINY, SHORT) for _ in range(3))
        second.close()
        await whole(first)
        await whole(third)

    play(story)


def test_a_killed_process_is_replaced(play: Callable[..., None], slow: Path) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        answer = playground.ask(SLOW, LONG)
        assert (await answer.next()).text
        os.kill(recorder.started[0].pid, signal.SIGKILL)
        assert (await failure(answer)).code == "model_unloaded"
        await whole(playground.ask(SLOW, SHORT))
        os.kill(recorder.started[1].pid, signal.SIGKILL)  # while it is idle
        await whole(playground.ask(SLOW, SHORT))
        assert len(recorder.started) == 3

    play(story, model_root=slow)


def test_an_idle_process_ends(play: Callable[..., None]) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        await whole(playground.ask(TINY, SHORT))
        await recorder.started[0].wait()
        await whole(playground.ask(TINY, SHORT))
        assert len(recorder.started) == 2

    play(story, try_idle_seconds=0.2)


def test_it_gives_way_to_a_training_that_starts(play: Callable[..., None], tmp_path: Path, slow: Path) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        answer = playground.ask(SLOW, LONG)
        assert (await answer.next()).text
        harness = StoreHarness(f"sqlite+aiosqlite:///{tmp_path / 'onyx.db'}")
        try:
            await harness.running(runner=await harness.runner(host=this_process().host))
        finally:
            await harness.store.close()
        assert (await failure(answer)).code == "model_unloaded"
        await whole(playground.ask(SLOW, SHORT))  # enough memory is left beside so small a training
        assert len(recorder.started) == 2

    play(story, model_root=slow)


def test_through_the_runner(
    loop: asyncio.Runner, forks: ForkLauncher, tmp_path: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner starts the chat process: one on a host, and it ends with `end_chats`."""
    monkeypatch.setattr("onyx.jobs.playground.manager.CHECK_SECONDS", 3600.0)  # so that the playground does not end it
    settings = Settings(home=tmp_path, cpu_memory="1GB", try_idle_seconds=0.5, model_root=slow)

    async def story() -> None:
        settings.run_dir.mkdir()
        launch_service = LaunchService(settings.run_dir, forks)
        await launch_service.open()
        launcher = LaunchClient(settings.run_dir)
        async with (
            opened(settings, launcher) as (one, started),
            opened(settings, launcher) as (other, waiting),
        ):
            answer = one.ask(SLOW, LONG)
            assert (await answer.next()).text
            second = other.ask(SLOW, SHORT)
            launch_service.end_chats()
            assert (await failure(answer)).code == "model_unloaded"
            await whole(second)
            third = one.ask(SLOW, SHORT)  # waits until the other process has been idle for long enough
            await whole(third)
            assert (len(started.started), len(waiting.started)) == (2, 1)
        launch_service.close()

    loop.run(asyncio.wait_for(story(), PATIENCE))


def test_an_answer_that_takes_too_long_fails(play: Callable[..., None], slow: Path) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        assert (await failure(playground.ask(SLOW, LONG))).code == "timeout"

    play(story, try_seconds=0.5, model_root=slow)


def test_a_model_that_is_not_there(play: Callable[..., None]) -> None:
    async def story(playground: Playground, recorder: RecordingLauncher) -> None:
        assert (await failure(playground.ask(PlaygroundModel("no such model"), SHORT))).code == "model_not_found"
        await whole(playground.ask(TINY, SHORT))

    play(story)

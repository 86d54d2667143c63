"""Trying models: one in memory at a time, owners have their turns in rounds, and no training ever gives way."""

import asyncio
import contextlib
from dataclasses import dataclass

from onyx.jobs.errors import StoreUnavailableError
from onyx.jobs.launch.launcher import Launcher
from onyx.jobs.playground.capacity import CPU, spare_memory, spare_threads
from onyx.jobs.playground.fair_queue import FairQueue
from onyx.jobs.playground.session import GONE, ChatSession, ChatSessionError, start_session
from onyx.jobs.process_identity import this_process
from onyx.jobs.store.store import Store
from onyx.settings import Settings
from onyx.training.contract.attempt import Failure
from onyx.training.contract.chat_protocol import NO_MEMORY, GenerateRequest, LoadRequest, Reply
from onyx.training.contract.prepared import Roots

LOOK_SECONDS = 0.5
"""How often whoever holds a model looks whether a training has been lent memory."""


@dataclass(frozen=True)
class PlaygroundModel:
    """The model that somebody wants to talk to."""

    name: str
    """As a job's spec would name it."""

    jobs: tuple[str, ...] = ()
    """The former job whose model it is, when it is one's. Whoever asks has checked the owner."""


class AnswerStream:
    """The answer to one question, as it comes. Closing it takes the question back."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[Reply] = asyncio.Queue()
        self.begun = False
        self.task: asyncio.Task[None] | None = None

    async def next(self) -> Reply:
        """The next line; the one that says how it ended is the last."""
        return await self.lines.get()

    def tell(self, said: Reply) -> None:
        self.begun = True
        self.lines.put_nowait(said)

    def fail(self, code: str, message: str) -> None:
        self.tell(Reply(failure=Failure(code=code, message=message)))

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Playground:
    """Keeps at most one model in memory, for as long as it is asked."""

    def __init__(self, settings: Settings, store: Store, launcher: Launcher) -> None:
        self._settings = settings
        self._store = store
        self._launcher = launcher
        self._rounds = FairQueue()
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Of every question under way or waiting, whose it is."""

        self._trial: ChatSession | None = None
        self._tried: PlaygroundModel | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._yielding: asyncio.Task[None] | None = None

    def ask(self, tried: PlaygroundModel, question: GenerateRequest, owner: str = "local") -> AnswerStream:
        """The talk about this question. Owners have one turn each in a round; an owner's own come in order."""
        talk = AnswerStream()
        if full := self._full(owner):
            talk.fail("queue_full", full)
            return talk
        talk.task = asyncio.create_task(self._answer(tried, question, talk, owner))
        self._tasks[talk.task] = owner
        talk.task.add_done_callback(self._tasks.pop)
        return talk

    def _full(self, owner: str) -> str:
        """Why there is no place for one more; nothing where there is."""
        own = sum(each == owner for each in self._tasks.values())
        if own >= self._settings.try_queue_per_owner:
            return f"{own} questions of yours wait already, and no more may: try again when one has been answered"
        if len(self._tasks) >= self._settings.try_queue:
            return f"{len(self._tasks)} questions wait already: try again in a moment"
        return ""

    async def close(self) -> None:
        """Take back all questions and let go of the model."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._let_go()

    async def _answer(self, tried: PlaygroundModel, question: GenerateRequest, talk: AnswerStream, owner: str) -> None:
        limit = self._settings.try_seconds
        try:
            async with asyncio.timeout(limit), self._rounds.turn(owner):
                await self._take_turn(tried, question, talk)
        except ChatSessionError as error:
            talk.tell(Reply(failure=error.failure))
        except TimeoutError:
            talk.fail("timeout", f"no whole answer within {limit:.0f} seconds: ask for fewer tokens, or later")
        except StoreUnavailableError:
            talk.fail("unavailable", "the job store does not answer: try again in a moment")

    async def _take_turn(self, tried: PlaygroundModel, question: GenerateRequest, talk: AnswerStream) -> None:
        self._stay()
        former = self._trial
        try:
            await self._put(tried, question, talk)
        except ChatSessionError as error:
            # That a process was ended while nobody asked it anything may only show when it is asked.
            if error.failure is not GONE or talk.begun or self._trial is not former:
                raise
            await self._put(tried, question, talk)

    async def _put(self, tried: PlaygroundModel, question: GenerateRequest, talk: AnswerStream) -> None:
        trial = await self._holding(tried)
        lent = frozenset(await self._store.claims.lent_devices(this_process().host))
        threads = spare_threads(self._settings, lent)
        try:
            await trial.ask(question.model_copy(update={"threads": threads}), talk.tell)
        except ChatSessionError as error:
            if error.failure.code == NO_MEMORY:
                # It may hold more than before, and what is free has changed: the next question has a new one.
                await self._let_go()
            raise
        finally:
            self._stay()
            self._leaving = asyncio.create_task(self._leave_when_idle())

    async def _holding(self, tried: PlaygroundModel) -> ChatSession:
        if self._trial is not None and self._trial.alive and self._tried == tried:
            return self._trial
        await self._let_go()
        trial = await start_session(self._settings, self._launcher)
        self._trial, self._tried = trial, tried
        try:
            # Only now is memory looked at: to whatever is lent later the process gives way.
            lent = frozenset(await self._store.claims.lent_devices(this_process().host))
            self._yielding = asyncio.create_task(self._give_way(trial, lent))
            await trial.load(self._choice(tried, spare_memory(self._settings, lent)))
        except BaseException:
            await self._let_go()
            raise
        return trial

    def _choice(self, tried: PlaygroundModel, memory: int) -> LoadRequest:
        settings = self._settings
        roots = Roots(
            home=settings.home,
            models=settings.model_root,
            jobs=tried.jobs,
            remote_code=settings.remote_code_models,
        )
        return LoadRequest(model=tried.name, roots=roots, memory=memory)

    async def _give_way(self, trial: ChatSession, lent: frozenset[str]) -> None:
        """The runner ends it with the claim. A process that no runner has started must be ended from here."""
        while trial.alive:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(StoreUnavailableError):
                now = frozenset(await self._store.claims.lent_devices(this_process().host))
                if any(name.startswith(CPU) for name in now - lent):
                    await trial.end()

    async def _let_go(self) -> None:
        self._stay()
        if self._yielding is not None:
            self._yielding.cancel()
        trial, self._trial = self._trial, None
        if trial is not None:
            await trial.end()

    def _stay(self) -> None:
        """There is something to do: nobody leaves."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    async def _leave_when_idle(self) -> None:
        await asyncio.sleep(self._settings.try_idle_seconds)
        trial, self._trial = self._trial, None
        if trial is not None:
            await trial.end()

"""Chats with models: one model in memory at a time, owners take turns, and training jobs come first."""

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

CHECK_SECONDS = 0.5
"""Between two checks whether a training job has been given memory of this host."""


@dataclass(frozen=True)
class PlaygroundModel:
    """The model that a client wants to chat with."""

    name: str
    """Its name, as in a job's spec."""

    jobs: tuple[str, ...] = ()
    """The job that trained it, if it is a job's model. The caller has checked that the client owns the job."""


class AnswerStream:
    """The answer to one request, as it is generated. Closing it cancels the request."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[Reply] = asyncio.Queue()
        self.begun = False
        self.task: asyncio.Task[None] | None = None

    async def next(self) -> Reply:
        """The next line; the one with an end or a failure is the last."""
        return await self.lines.get()

    def put(self, reply: Reply) -> None:
        self.begun = True
        self.lines.put_nowait(reply)

    def fail(self, code: str, message: str) -> None:
        self.put(Reply(failure=Failure(code=code, message=message)))

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Playground:
    """Keeps at most one model in memory, and unloads it when it has been idle for a time."""

    def __init__(self, settings: Settings, store: Store, launcher: Launcher) -> None:
        self._settings = settings
        self._store = store
        self._launcher = launcher
        self._queue = FairQueue()
        self._tasks: dict[asyncio.Task[None], str] = {}
        """The owner of every request that waits or is being answered."""

        self._session: ChatSession | None = None
        self._model: PlaygroundModel | None = None
        self._idle_timer: asyncio.Task[None] | None = None
        self._memory_watch: asyncio.Task[None] | None = None

    def ask(self, model: PlaygroundModel, request: GenerateRequest, owner: str = "local") -> AnswerStream:
        """Queue a request; its answer. Owners take turns, one request each; requests of one owner stay in order."""
        answer = AnswerStream()
        if full := self._full(owner):
            answer.fail("queue_full", full)
            return answer
        answer.task = asyncio.create_task(self._answer(model, request, answer, owner))
        self._tasks[answer.task] = owner
        answer.task.add_done_callback(self._tasks.pop)
        return answer

    def _full(self, owner: str) -> str:
        """Why no further request is accepted; an empty string if it is."""
        own = sum(each == owner for each in self._tasks.values())
        if own >= self._settings.try_queue_per_owner:
            return f"{own} questions of yours wait already, and no more may: try again when one has been answered"
        if len(self._tasks) >= self._settings.try_queue:
            return f"{len(self._tasks)} questions wait already: try again in a moment"
        return ""

    async def close(self) -> None:
        """Cancel all requests and unload the model."""
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._unload()

    async def _answer(self, model: PlaygroundModel, request: GenerateRequest, answer: AnswerStream, owner: str) -> None:
        limit = self._settings.try_seconds
        try:
            async with asyncio.timeout(limit), self._queue.turn(owner):
                await self._take_turn(model, request, answer)
        except ChatSessionError as error:
            answer.put(Reply(failure=error.failure))
        except TimeoutError:
            answer.fail("timeout", f"no whole answer within {limit:.0f} seconds: ask for fewer tokens, or later")
        except StoreUnavailableError:
            answer.fail("unavailable", "the job store does not answer: try again in a moment")

    async def _take_turn(self, model: PlaygroundModel, request: GenerateRequest, answer: AnswerStream) -> None:
        self._stop_idle_timer()
        former = self._session
        try:
            await self._generate(model, request, answer)
        except ChatSessionError as error:
            # A process that was killed while it was idle may be noticed only now: try once more with a new one.
            if error.failure is not GONE or answer.begun or self._session is not former:
                raise
            await self._generate(model, request, answer)

    async def _generate(self, model: PlaygroundModel, request: GenerateRequest, answer: AnswerStream) -> None:
        session = await self._session_with(model)
        lent = frozenset(await self._store.claims.lent_devices(this_process().host))
        threads = spare_threads(self._settings, lent)
        try:
            await session.ask(request.model_copy(update={"threads": threads}), answer.put)
        except ChatSessionError as error:
            if error.failure.code == NO_MEMORY:
                # It may use more memory than before and less may be free: the next request gets a new process.
                await self._unload()
            raise
        finally:
            self._stop_idle_timer()
            self._idle_timer = asyncio.create_task(self._unload_when_idle())

    async def _session_with(self, model: PlaygroundModel) -> ChatSession:
        if self._session is not None and self._session.alive and self._model == model:
            return self._session
        await self._unload()
        session = await start_session(self._settings, self._launcher)
        self._session, self._model = session, model
        try:
            # Memory is measured after the process exists: it gives way to every device that is lent from now on.
            lent = frozenset(await self._store.claims.lent_devices(this_process().host))
            self._memory_watch = asyncio.create_task(self._give_way(session, lent))
            await session.load(self._load_request(model, spare_memory(self._settings, lent)))
        except BaseException:
            await self._unload()
            raise
        return session

    def _load_request(self, model: PlaygroundModel, memory: int) -> LoadRequest:
        settings = self._settings
        roots = Roots(
            home=settings.home,
            models=settings.model_root,
            jobs=model.jobs,
            remote_code=settings.remote_code_models,
        )
        return LoadRequest(model=model.name, roots=roots, memory=memory)

    async def _give_way(self, session: ChatSession, lent: frozenset[str]) -> None:
        """End a process that the runner did not start. The others are killed by the runner when it claims a job."""
        while session.alive:
            await asyncio.sleep(CHECK_SECONDS)
            with contextlib.suppress(StoreUnavailableError):
                now = frozenset(await self._store.claims.lent_devices(this_process().host))
                if any(name.startswith(CPU) for name in now - lent):
                    await session.end()

    async def _unload(self) -> None:
        self._stop_idle_timer()
        if self._memory_watch is not None:
            self._memory_watch.cancel()
        session, self._session = self._session, None
        if session is not None:
            await session.end()

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    async def _unload_when_idle(self) -> None:
        await asyncio.sleep(self._settings.try_idle_seconds)
        session, self._session = self._session, None
        if session is not None:
            await session.end()

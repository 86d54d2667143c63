"""The context: what all requests to one ONYX_HOME share. It is opened once, by a lifespan or by the first request."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from starlette.requests import Request

from onyx.api.http.audit import AuditLog
from onyx.api.http.caller import Caller, with_key, without_keys
from onyx.api.http.errors import ApiError
from onyx.api.http.rate_limit import Places, RateLimit
from onyx.api.schemas.stats import Stats
from onyx.api.ttl_cache import TtlCache
from onyx.jobs.home import Home
from onyx.jobs.launch.launch_service import LaunchClient
from onyx.jobs.models import Job
from onyx.jobs.playground.manager import Playground
from onyx.jobs.runner.autostart import RunnerProcess
from onyx.jobs.store.keys import ApiKey
from onyx.memory.devices.device import Device
from onyx.memory.devices.gpus import list_gpus_async
from onyx.settings import Settings

logger = logging.getLogger(__name__)

FRESH_SECONDS = 2.0
"""How long keys and devices that were read are taken for true."""

STATS_SECONDS = 2.0
"""The same for a job's statistics, of which the store hears at most once a second."""

KEEP_SECONDS = 2.0
"""Between two looks at whether the runner lives."""


class AppContext:
    """Home, keys, limits and the way to the planner."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.settings = home.settings
        self.store = home.store
        self.launcher = LaunchClient(home.settings.run_dir)
        self.playground = Playground(home.settings, home.store, self.launcher)
        self.requests = RateLimit(home.settings.rate_limit, "requests")
        self.plans = RateLimit(home.settings.planning_rate_limit, "plans")
        self.audit = AuditLog(home.settings)
        self.streams = Places(home.settings.streams_per_caller)
        self.stats: TtlCache[str, tuple[str, Stats] | None] = TtlCache(STATS_SECONDS)
        self.leaving = asyncio.Event()
        self._keys: TtlCache[None, tuple[ApiKey, ...]] = TtlCache(FRESH_SECONDS)
        self._gpus: TtlCache[None, list[Device]] = TtlCache(FRESH_SECONDS)

    async def admit(self, request: Request) -> Caller:
        """Who is asking; 401 or 403 for those who may not, 429 for those who ask too often."""
        try:
            caller = await self._identify(request)
        except ApiError:
            await self.requests.hit(f"peer:{request.client.host if request.client else None}")
            raise
        await self.requests.hit(caller.counted_as)
        return caller

    async def still_admits(self, caller: Caller) -> bool:
        """Whether a caller that was let in would be again: a stream ends when its key is revoked."""
        working = {key.id for key in await self._keys.get(None, self.store.keys.list) if key.revoked_at is None}
        return caller.key_id is None or caller.key_id in working

    async def wait(self, job_id: str, seconds: float) -> Job:
        """As Home.wait; a service that is about to leave keeps nobody waiting."""
        waiting = asyncio.create_task(self.home.wait(job_id, seconds))
        leaving = asyncio.create_task(self.leaving.wait())
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return await (waiting if waiting.done() else self.home.wait(job_id, 0))
        finally:
            waiting.cancel()
            leaving.cancel()

    async def gpus(self) -> list[Device]:
        """The GPUs of this host."""
        return await self._gpus.get(None, list_gpus_async)

    async def _identify(self, request: Request) -> Caller:
        keys = await self._keys.get(None, self.store.keys.list)
        if keys:  # revoked ones too: taking back the last key must not let everybody in
            return with_key(request, keys)
        return without_keys(request, allow_anonymous=self.settings.allow_anonymous)


class ContextProvider:
    """Opens the context when it is first needed, once per event loop."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._contexts: WeakKeyDictionary[asyncio.AbstractEventLoop, AppContext] = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._users = 0

    async def context(self) -> AppContext:
        loop = asyncio.get_running_loop()
        if (context := self._contexts.get(loop)) is not None:
            return context
        async with self._locks.setdefault(loop, asyncio.Lock()):
            if loop not in self._contexts:
                self._contexts[loop] = await _open_context(self._settings)
        return self._contexts[loop]

    def leave(self) -> RunnerProcess | None:
        """This process is about to end: whoever waits or listens hears now, and its runner is told to stop."""
        found = None
        for context in self._contexts.values():
            context.leaving.set()
            found = context.home.stop_runner() or found
        return found

    async def _keep_runner(self) -> None:
        """A runner that was killed is replaced, whether or not anybody asks for anything."""
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            try:
                await (await self.context()).home.ensure_runner()
            except Exception:
                logger.exception("no runner could be started", extra={"action": "runner_failed"})

    async def __call__(self, request: Request) -> None:
        """As a dependency of a router: who is asking is known before any handler runs. Asked twice, it counts once."""
        context = await self.context()
        if getattr(request.state, "admitted_by", None) is context:
            return
        request.state.context = context
        request.state.caller = await context.admit(request)
        request.state.admitted_by = context

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Included twice, it is still one context; the last to leave closes it."""
        self._users += 1
        try:
            await self.context()
        except Exception:  # a store that is away at the start may be there for the first request
            logger.exception("the context could not be opened yet", extra={"action": "opening_failed"})
        keeping = asyncio.create_task(self._keep_runner())
        try:
            yield
        finally:
            keeping.cancel()
            self._users -= 1
            context = self._contexts.get(asyncio.get_running_loop())
            if context is not None and self._users == 0:
                del self._contexts[asyncio.get_running_loop()]
                await context.playground.close()
                await context.home.close()


async def _open_context(settings: Settings | None) -> AppContext:
    """A context with a runner beside it; without one, nothing of it stays open."""
    home = await Home.open(settings)
    try:
        await home.ensure_runner()
        return AppContext(home)
    except BaseException:
        await home.close()
        raise

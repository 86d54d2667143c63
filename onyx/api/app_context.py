"""What all requests of one app share: the store, the launcher, the limits and the caches.

`AppContext` holds it. `ContextProvider` opens it once per event loop, at the start of the app or for the first request,
lets callers in, and closes it again.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from starlette.requests import Request

from onyx.api.http.audit import AuditLog
from onyx.api.http.caller import Caller, caller_with_key, caller_without_keys
from onyx.api.http.errors import ApiError
from onyx.api.http.rate_limit import ConcurrencyLimit, RateLimit
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

CACHE_SECONDS = 2.0
"""How long API keys and GPUs are cached. A revoked key works at most this much longer."""

STATS_SECONDS = 2.0
"""How long a job's statistics are cached. The runner writes them at most once a second."""

RUNNER_CHECK_SECONDS = 2.0
"""Time between two checks that the runner is alive."""


class AppContext:
    """The open resources of one ONYX_HOME, and the checks that need them."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.settings = home.settings
        self.store = home.store
        self.launcher = LaunchClient(home.settings.run_dir)
        self.playground = Playground(home.settings, home.store, self.launcher)
        self.requests = RateLimit(home.settings.rate_limit, "requests")
        self.plans = RateLimit(home.settings.planning_rate_limit, "plans")
        self.streams = ConcurrencyLimit(home.settings.streams_per_caller)
        self.audit = AuditLog(home.settings)
        self.stats: TtlCache[str, tuple[str, Stats] | None] = TtlCache(STATS_SECONDS)
        self.stopping = asyncio.Event()
        """Set when the process is about to end: open streams and waiting requests end early."""

        self._keys: TtlCache[None, tuple[ApiKey, ...]] = TtlCache(CACHE_SECONDS)
        self._gpus: TtlCache[None, list[Device]] = TtlCache(CACHE_SECONDS)

    async def admit(self, request: Request) -> Caller:
        """The caller of a request. 401 or 403 if it is not allowed in, 429 if it sends too many requests."""
        try:
            caller = await self._identify(request)
        except ApiError:
            await self.requests.hit(f"peer:{request.client.host if request.client else None}")
            raise
        await self.requests.hit(caller.limit_key)
        return caller

    async def still_admits(self, caller: Caller) -> bool:
        """Whether the caller's key still works. Long answers check this: they end when the key is revoked."""
        working = {key.id for key in await self._keys.get(None, self.store.keys.list) if key.revoked_at is None}
        return caller.key_id is None or caller.key_id in working

    async def wait(self, job_id: str, seconds: float) -> Job:
        """`Home.wait`, but it returns at once when the process is about to end."""
        waiting = asyncio.create_task(self.home.wait(job_id, seconds))
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return await (waiting if waiting.done() else self.home.wait(job_id, 0))
        finally:
            waiting.cancel()
            stopping.cancel()

    async def gpus(self) -> list[Device]:
        """The GPUs of this host."""
        return await self._gpus.get(None, list_gpus_async)

    async def _identify(self, request: Request) -> Caller:
        keys = await self._keys.get(None, self.store.keys.list)
        if keys:  # revoked ones count too: revoking the last key must not open the API to every caller
            return caller_with_key(request, keys)
        return caller_without_keys(request, allow_anonymous=self.settings.allow_anonymous)


_Opened = tuple[AppContext, AsyncGenerator[AppContext]]
"""A context, and the generator that closes it."""


class ContextProvider:
    """Opens the `AppContext` when it is first needed, once per event loop, and closes it at the end.

    Routers use it in two ways: as their lifespan, and as a dependency that admits the caller before any handler runs.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._lifespans = 0

    async def context(self) -> AppContext:
        """The context of the running event loop; opened by the first call."""
        loop = asyncio.get_running_loop()
        async with self._locks.setdefault(loop, asyncio.Lock()):
            if loop not in self._open:
                opening = _open_context(self._settings)
                self._open[loop] = await anext(opening), opening
        return self._open[loop][0]

    def stop(self) -> RunnerProcess | None:
        """The process is about to end: end streams and waiting requests, and stop the runner that it started."""
        found = None
        for context, _ in self._open.values():
            context.stopping.set()
            found = context.home.stop_runner() or found
        return found

    async def __call__(self, request: Request) -> None:
        """Admit the caller of a request. A second call for the same request does nothing: each is counted once."""
        context = await self.context()
        if getattr(request.state, "admitted_by", None) is context:
            return
        request.state.context = context
        request.state.caller = await context.admit(request)
        request.state.admitted_by = context

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Open the context and keep a runner alive. An app may include the router twice: the last lifespan closes."""
        self._lifespans += 1
        try:
            await self.context()
        except Exception:  # the database may be back by the time of the first request
            logger.exception("the app context could not be opened yet", extra={"action": "opening_failed"})
        keeping = asyncio.create_task(self._keep_runner())
        try:
            yield
        finally:
            keeping.cancel()
            self._lifespans -= 1
            if self._lifespans == 0:
                await self._close()

    async def _close(self) -> None:
        if (opened := self._open.pop(asyncio.get_running_loop(), None)) is not None:
            await opened[1].aclose()

    async def _keep_runner(self) -> None:
        """Replace a runner that was killed, also while no request comes."""
        while True:
            await asyncio.sleep(RUNNER_CHECK_SECONDS)
            try:
                await (await self.context()).home.ensure_runner()
            except Exception:
                logger.exception("no runner could be started", extra={"action": "runner_failed"})


async def _open_context(settings: Settings | None) -> AsyncGenerator[AppContext]:
    """Yield a context that has a runner, and close it when this generator is closed.

    An event loop closes its open generators when it ends. So the connections are closed in time also in an app whose
    lifespan never runs, such as a mounted app or one that a test calls directly.
    """
    home = await Home.open(settings)
    try:
        await home.ensure_runner()
        context = AppContext(home)
        try:
            yield context
        finally:
            await context.playground.close()
    finally:
        await home.close()

"""For operators and their probes: is the process alive, is it ready, and its numbers."""

import asyncio

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from onyx.api import prometheus as gauges
from onyx.api.app_context import AppContext, ContextProvider
from onyx.api.deps import BEARER, ContextDep
from onyx.api.http.route import OnyxRoute
from onyx.api.prometheus import REGISTRY
from onyx.api.schemas.common import problems
from onyx.api.schemas.operations import Alive, Ready
from onyx.jobs.errors import StoreError
from onyx.jobs.store.migrate import is_migrated


def make_operations(provider: ContextProvider) -> APIRouter:
    """Routes of the service itself: an app that embeds the router has its own."""
    router = APIRouter(route_class=OnyxRoute, tags=["operations"])

    @router.get("/healthz")
    async def alive() -> Alive:
        """The process answers. Touches neither store nor devices."""
        return Alive(status="alive")

    @router.get("/readyz", response_model=Ready, responses={503: {"model": Ready}})
    async def ready() -> Response:
        """The store answers and has this version's tables, and a runner lives."""
        state = await _state(provider)
        return JSONResponse(state.model_dump(), 200 if state.ready else 503)

    @router.get(
        "/metrics",
        response_class=Response,
        dependencies=[Depends(provider), Depends(BEARER)],
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()},
    )
    async def metrics(context: ContextDep) -> Response:
        """For Prometheus: this process's requests, and the jobs, runners, cards and disk that it sees."""
        return Response(generate_latest(REGISTRY) + await gauges.expose(context), media_type=CONTENT_TYPE_LATEST)

    return router


async def _state(provider: ContextProvider) -> Ready:
    try:
        context = await provider.context()
        migrated = await is_migrated(context.store.database.engine)
    except (StoreError, OSError):
        return Ready(ready=False, store=False, migrated=False, runner=False)
    runner = await _runner_lives(context)
    return Ready(ready=migrated and runner, store=True, migrated=migrated, runner=runner)


async def _runner_lives(context: AppContext) -> bool:
    """One beside this process, or elsewhere one that reached the store within a lease."""
    if await asyncio.to_thread(context.home.runner_is_alive):  # a look at a lock's file may have to wait for the disk
        return True
    now = await context.store.now()
    return any(now - runner.reached_at < context.store.lease_seconds for runner in await context.store.runners.list())

"""Probes and metrics for operators: alive, ready, Prometheus."""

import asyncio

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from onyx.api import prometheus
from onyx.api.app_context import AppContext, ContextProvider
from onyx.api.deps import BEARER, ContextDep
from onyx.api.onyx_route import OnyxRoute
from onyx.api.schemas.common import problems
from onyx.api.schemas.stats import Alive, Ready
from onyx.jobs.errors import StoreError
from onyx.jobs.store.migrate import is_migrated


def make_operations(provider: ContextProvider) -> APIRouter:
    """The operator's routes. `onyx serve` has them; an app that embeds Onyx's router usually has its own."""
    router = APIRouter(route_class=OnyxRoute, tags=["operations"])

    @router.get("/healthz")
    async def alive() -> Alive:
        """The process answers. Reads neither the store nor devices."""
        return Alive(status="alive")

    @router.get("/readyz", response_model=Ready, responses={503: {"model": Ready}})
    async def ready() -> Response:
        """The store answers and has this version's tables, and a runner is alive."""
        found = await _readiness(provider)
        return JSONResponse(found.model_dump(), 200 if found.ready else 503)

    @router.get(
        "/metrics",
        response_class=Response,
        dependencies=[Depends(provider), Depends(BEARER)],
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems()},
    )
    async def metrics(context: ContextDep) -> Response:
        """For Prometheus: requests of this process, and the jobs, runners, GPUs and disk of its ONYX_HOME."""
        return Response(
            generate_latest(prometheus.REGISTRY) + await prometheus.expose(context), media_type=CONTENT_TYPE_LATEST
        )

    return router


async def _readiness(provider: ContextProvider) -> Ready:
    try:
        context = await provider.context()
        migrated = await is_migrated(context.store.database.engine)
    except (StoreError, OSError):
        return Ready(ready=False, store=False, migrated=False, runner=False)
    runner = await _runner_is_alive(context)
    return Ready(ready=migrated and runner, store=True, migrated=migrated, runner=runner)


async def _runner_is_alive(context: AppContext) -> bool:
    """Whether a runner holds this host's lock, or one on another host has reached the store within a lease."""
    if await asyncio.to_thread(context.home.runner_is_alive):  # in a thread: the lock file may be on a slow disk
        return True
    now = await context.store.now()
    return any(now - runner.reached_at < context.store.lease_seconds for runner in await context.store.runners.list())

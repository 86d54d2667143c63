"""The documented `/gradient-accumulation` API as a router that any FastAPI app can include."""

from fastapi import APIRouter

from onyx.api.app_context import ContextProvider
from onyx.api.onyx_route import guarded_router
from onyx.api.routes import batch_size, cleanup, configs, events, results, stats, training
from onyx.api.schemas.common import problems
from onyx.settings import Settings

PREFIX = "/gradient-accumulation"
_RESOURCES = (stats, configs, training, events, results, batch_size, cleanup)


def make_router(settings: Settings | None = None) -> APIRouter:
    """A router with a context of its own. Without settings they are read from `ONYX_…` at the first request."""
    return router_of(ContextProvider(settings))


def router_of(provider: ContextProvider) -> APIRouter:
    """The router on a context that it shares with other routers."""
    return guarded_router(provider, PREFIX, _RESOURCES, problems())

"""Document 002's API as a router that anybody's FastAPI app can include."""

from fastapi import APIRouter

from onyx.api.app_context import ContextProvider
from onyx.api.http.route import guarded_router
from onyx.api.routes import batch_size, cleanup, configs, events, results, stats, training
from onyx.api.schemas.common import problems
from onyx.settings import Settings

PREFIX = "/gradient-accumulation"
_PARTS = (stats, configs, training, events, results, batch_size, cleanup)


def make_router(settings: Settings | None = None) -> APIRouter:
    """The documented endpoints. Without settings they come from `ONYX_…` in the environment, when first needed."""
    return router_of(ContextProvider(settings))


def router_of(provider: ContextProvider) -> APIRouter:
    """The same on a context that others share."""
    return guarded_router(provider, PREFIX, _PARTS, problems())

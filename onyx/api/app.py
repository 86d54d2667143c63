"""The whole service as one FastAPI app."""

from fastapi import FastAPI

from onyx import __version__
from onyx.api.app_context import ContextProvider
from onyx.api.openai.router import openai_router_of
from onyx.api.router import router_of
from onyx.api.routes.operations import make_operations
from onyx.settings import Settings

_ABOUT = """Self-hosted fine-tuning: jobs fit into memory, give exact results and survive crashes.

A first job: `POST /gradient-accumulation/training/with-accumulation` with the example below, then
`GET /gradient-accumulation/training/{training_id}`."""


def create_app(settings: Settings | None = None) -> FastAPI:
    """The app that `onyx serve` runs. All routers share one context."""
    provider = ContextProvider(settings)
    app = FastAPI(title="Onyx", version=__version__, description=_ABOUT, redirect_slashes=False)
    app.state.context_provider = provider
    app.include_router(make_operations(provider))
    app.include_router(router_of(provider))
    app.include_router(openai_router_of(provider))
    return app

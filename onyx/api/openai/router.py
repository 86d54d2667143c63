"""OpenAI's API as a router that any FastAPI app can include, under any prefix."""

from fastapi import APIRouter, Request

from onyx.api.app_context import ContextProvider
from onyx.api.http.errors import ApiError
from onyx.api.onyx_route import guarded_router
from onyx.api.openai.deps import OpenAIRoute
from onyx.api.openai.errors import PROBLEMS
from onyx.api.openai.routes import chat, checkpoints, events, files, jobs, models
from onyx.settings import Settings

PREFIX = "/v1"
_PARTS = (files, jobs, events, checkpoints, models, chat)
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def make_openai_router(settings: Settings | None = None) -> APIRouter:
    """The endpoints that OpenAI's client calls. Without `settings` they are read from `ONYX_…` at the first request."""
    return openai_router_of(ContextProvider(settings))


def openai_router_of(provider: ContextProvider) -> APIRouter:
    """The same on a context that others share."""
    router = guarded_router(provider, PREFIX, _PARTS, PROBLEMS)
    router.include_router(_unknown_paths())
    return router


def _unknown_paths() -> APIRouter:
    """A 404 in OpenAI's shape for every other path, so that its client can read it."""
    router = APIRouter(route_class=OpenAIRoute)

    @router.api_route("/{path:path}", methods=METHODS, include_in_schema=False)
    async def not_here(path: str, request: Request) -> None:
        message = (
            f"there is no {request.method} /{path[:200]} here: Onyx has files, fine_tuning, models and chat/completions"
        )
        raise ApiError(404, message, code="unknown_url", param="path")

    return router

"""The one way every request of Onyx goes through: bounded, translated, counted and noted.

A route class, because a router that others include can bring no middleware and no exception handlers of its own.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import ModuleType
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from onyx import logs
from onyx.api import prometheus as metrics
from onyx.api.app_context import ContextProvider
from onyx.api.deps import BEARER
from onyx.api.http import audit
from onyx.api.http.bounded_body import BoundedRequest
from onyx.api.http.errors import ApiError, translate


def route_template(request: Request, own: str) -> str:
    """`own` with the prefixes under which its router was included and its app mounted.

    A route knows its own part only, and FastAPI keeps the rest where others should not look. But the path is at hand:
    what comes before the route's own part are the prefixes.
    """
    params = {name: str(value) for name, value in request.path_params.items()}
    try:
        rendered = own.format_map(params)
    except (KeyError, ValueError, IndexError):
        return own
    path: str = request.scope["path"]
    if not rendered or not path.endswith(rendered):
        return own
    prefix = path[: len(path) - len(rendered)]
    for name, value in params.items():
        if f"{{{name}}}" not in own:  # a prefix may have parameters, too
            prefix = "/".join(f"{{{name}}}" if part == value else part for part in prefix.split("/"))
    return prefix + own


REQUEST_ID = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def request_id_of(request: Request) -> str:
    """The caller's own, where it is harmless, or a new one."""
    given = request.headers.get(REQUEST_ID, "")
    return given if _SANE.fullmatch(given) else f"req_{secrets.token_hex(12)}"


logger = logging.getLogger(__name__)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OnyxRoute(APIRoute):
    """Errors become `{"detail": sentence}`; every answer carries its request's id."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            began = time.perf_counter()
            request.state.request_id = request_id_of(request)
            bounded = BoundedRequest(request.scope, request.receive)
            with logs.log_ids(request_id=request.state.request_id):
                try:
                    for provider in self._providers(request):
                        await provider(bounded)
                    response = await handle(bounded)
                except Exception as error:
                    response = self.answer(translate(error, request) or _ours(error, request))
                response.headers[REQUEST_ID] = request.state.request_id
                route, seconds = route_template(request, self.path_format), time.perf_counter() - began
                metrics.count(request.method, route, response.status_code, seconds)
                await audit.note(bounded, self.name, route, response.status_code)
                _log(bounded, route, response.status_code, seconds)
            return response

        return handle_bounded

    def _providers(self, request: Request) -> list[ContextProvider]:
        """Whom to ask before a byte of the body is read: FastAPI reads it first and runs dependencies after."""
        included = request.scope.get("fastapi", {}).get("effective_route_context", self)
        return [each.dependency for each in included.dependencies if isinstance(each.dependency, ContextProvider)]

    def answer(self, error: ApiError) -> Response:
        """An error in this API's words."""
        return JSONResponse({"detail": error.message}, error.status_code, error.headers)


def _log(request: Request, route: str, status: int, seconds: float) -> None:
    """One line per request. The template and not the path: what callers put into a path stays out of the log."""
    caller = getattr(request.state, "caller", None)
    logger.info(
        "%s %s %d",
        request.method,
        route,
        status,
        extra={
            "action": "request",
            "request_id": request.state.request_id,
            "method": request.method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "owner": caller.name if caller else None,
        },
    )


def _ours(error: Exception, request: Request) -> ApiError:
    """A defect. Whoever asked learns under which number the operator finds it, and nothing else."""
    number = request.state.request_id
    logger.error("request %s failed", number, exc_info=error, extra={"action": "request_failed", "request_id": number})
    return ApiError(500, f"something broke here, not in your request: the operator's log has it under {number}")


def guarded_router(
    provider: ContextProvider, prefix: str, parts: Iterable[ModuleType], responses: Mapping[int | str, dict[str, Any]]
) -> APIRouter:
    """The routers of `parts` under a prefix, on this provider's context. Anybody's FastAPI app can include it."""
    router = APIRouter(
        prefix=prefix,
        dependencies=[Depends(provider), Depends(BEARER)],
        lifespan=provider.lifespan,
        responses=dict(responses),
    )
    for part in parts:
        router.include_router(part.router)
    return router

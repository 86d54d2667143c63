"""What every request passes: body limits, admission, error translation, metrics, audit log, request log.

This is a route class and no middleware, because a router that another app includes cannot bring middleware or exception
handlers of its own.
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
from onyx.api import prometheus
from onyx.api.app_context import ContextProvider
from onyx.api.deps import BEARER
from onyx.api.http import audit
from onyx.api.http.bounded_body import BoundedRequest
from onyx.api.http.errors import ApiError, translate

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OnyxRoute(APIRoute):
    """A route whose errors are `{"detail": sentence}` and whose every answer carries the request's id."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            began = time.perf_counter()
            request.state.request_id = request_id_of(request)
            bounded = BoundedRequest(request.scope, request.receive)
            with logs.log_ids(request_id=request.state.request_id):
                try:
                    for admit in self._providers(request):  # before the body is read
                        await admit(bounded)
                    response = await handle(bounded)
                except Exception as error:
                    response = self.answer(translate(error, request) or _internal_error(error, request))
                response.headers[REQUEST_ID] = request.state.request_id
                route, seconds = route_template(request, self.path_format), time.perf_counter() - began
                prometheus.count(request.method, route, response.status_code, seconds)
                await audit.record(bounded, self.name, route, response.status_code)
                _log(bounded, route, response.status_code, seconds)
            return response

        return handle_bounded

    def _providers(self, request: Request) -> list[ContextProvider]:
        """The context providers among the dependencies. FastAPI itself runs them only after reading the body."""
        included = request.scope.get("fastapi", {}).get("effective_route_context", self)
        return [each.dependency for each in included.dependencies if isinstance(each.dependency, ContextProvider)]

    def answer(self, error: ApiError) -> Response:
        """An error in the shape of this API."""
        return JSONResponse({"detail": error.message}, error.status_code, error.headers)


def guarded_router(
    provider: ContextProvider,
    prefix: str,
    resources: Iterable[ModuleType],
    responses: Mapping[int | str, dict[str, Any]],
) -> APIRouter:
    """The routers of `resources` under a prefix, with the provider as their dependency and lifespan."""
    router = APIRouter(
        prefix=prefix,
        dependencies=[Depends(provider), Depends(BEARER)],
        lifespan=provider.lifespan,
        responses=dict(responses),
    )
    for resource in resources:
        router.include_router(resource.router)
    return router


def request_id_of(request: Request) -> str:
    """The id that the client sent, if it is safe to log and to send back, or else a new one."""
    given = request.headers.get(REQUEST_ID, "")
    return given if _SAFE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def route_template(request: Request, own: str) -> str:
    """The full route template: `own` with the prefixes of including routers and mounts before it.

    A route knows only its own part, and FastAPI keeps the prefixes in private attributes. So they are taken from the
    request's path: they are what stands before the route's own part.
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
        if f"{{{name}}}" not in own:  # a parameter of a prefix
            prefix = "/".join(f"{{{name}}}" if part == value else part for part in prefix.split("/"))
    return prefix + own


def _log(request: Request, route: str, status: int, seconds: float) -> None:
    """Log one line per request. It has the route template, because a client can put anything into the path."""
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


def _internal_error(error: Exception, request: Request) -> ApiError:
    """500 for a defect. The client gets only the request's id, under which the log has the traceback."""
    number = request.state.request_id
    logger.error("request %s failed", number, exc_info=error, extra={"action": "request_failed", "request_id": number})
    return ApiError(500, f"the service failed, not your request: the operator's log has the cause under {number}")

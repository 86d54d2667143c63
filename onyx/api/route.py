"""The one way every request of Onyx goes through: bounded, translated, counted and noted.

A route class, because a router that others include can bring no middleware and no exception handlers of its own.
"""

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from onyx import logs
from onyx.api import audit, metrics
from onyx.api.body import BoundedRequest
from onyx.api.desk import Opening
from onyx.api.errors import ApiError, translate
from onyx.api.request_id import REQUEST_ID, request_id_of
from onyx.api.template import route_template

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
            with logs.about(request_id=request.state.request_id):
                try:
                    for opening in self._openings(request):
                        await opening(bounded)
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

    def _openings(self, request: Request) -> list[Opening]:
        """Whom to ask before a byte of the body is read: FastAPI reads it first and runs dependencies after."""
        included = request.scope.get("fastapi", {}).get("effective_route_context", self)
        return [each.dependency for each in included.dependencies if isinstance(each.dependency, Opening)]

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

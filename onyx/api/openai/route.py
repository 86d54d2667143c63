"""Onyx's one way for requests, with OpenAI's shape of errors. A route class, so that it holds in anybody's app."""

from starlette.responses import JSONResponse, Response

from onyx.api.errors import ApiError
from onyx.api.openai.errors import error_answer, status_of
from onyx.api.route import OnyxRoute

_NO_USE_TRYING = frozenset({"quota_exceeded", "disk_full"})
"""Codes of what does not pass by itself in a minute: the client would wait that long, twice, for the same answer."""


class OpenAIRoute(OnyxRoute):
    """Errors become `{"error": {message, type, param, code}}`."""

    def answer(self, error: ApiError) -> Response:
        headers = dict(error.headers or {})
        if error.code in _NO_USE_TRYING:
            headers["x-should-retry"] = "false"
        return JSONResponse(error_answer(error).model_dump(), status_of(error), headers)

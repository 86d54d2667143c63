"""Onyx's one way for requests, with OpenAI's shape of errors. A route class, so that it holds in anybody's app."""

from starlette.responses import JSONResponse, Response

from onyx.api.errors import ApiError
from onyx.api.openai.errors import error_answer, status_of
from onyx.api.route import OnyxRoute


class OpenAIRoute(OnyxRoute):
    """Errors become `{"error": {message, type, param, code}}`."""

    def answer(self, error: ApiError) -> Response:
        return JSONResponse(error_answer(error).model_dump(), status_of(error), error.headers)

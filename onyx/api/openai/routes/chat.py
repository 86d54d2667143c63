"""Chat completions, for trying a model. docs/serving.md says how to serve one in production."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.sse import format_sse_event
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.errors import ApiError
from onyx.api.http.scrubbing import scrub
from onyx.api.openai.chat_request import playground_model, to_generate_request
from onyx.api.openai.deps import OpenAIRoute
from onyx.api.openai.errors import error_answer
from onyx.api.openai.schemas.chat import (
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatMessage,
    ChunkChoice,
    Delta,
    Usage,
)
from onyx.jobs.playground.manager import AnswerStream
from onyx.settings import Settings
from onyx.training.contract.attempt import Failure
from onyx.training.contract.chat_protocol import GenerationEnd, Reply

router = APIRouter(route_class=OpenAIRoute, tags=["chat"])

T = TypeVar("T")
EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"

_STATUS = {
    "queue_full": 429,
    "model_not_found": 404,
    "no_memory": 503,
    "model_unloaded": 503,
    "timeout": 503,
    "unavailable": 503,
    "broken": 500,
}
"""HTTP status by failure code; 400 for all others, which are mistakes in the request."""

RETRY_SECONDS = {"queue_full": 5, "no_memory": 30, "model_unloaded": 1, "timeout": 30, "unavailable": 5}


@router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses={200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}}},
)
async def create_chat_completion(
    request: Request, body: ChatBody, context: ContextDep, caller: CallerDep
) -> ChatCompletion | Response:
    """Ask a base model, a fine-tuned one or a checkpoint. One model is in memory at a time; trainings come first."""
    generate = to_generate_request(body, context.settings)
    model = await playground_model(body.model, context, caller)
    answer = context.playground.ask(model, generate, caller.name)
    formatter = AnswerFormatter(body.model, context.settings)
    if not body.stream:
        return await _while_connected(request, answer, formatter.completion(answer))
    first = await _while_connected(request, answer, formatter.next(answer))
    usage = body.stream_options is not None and body.stream_options.include_usage
    return AnswerStreamResponse(answer, formatter.chunks(first, answer, usage=usage))


@dataclass
class AnswerFormatter:
    """One answer in OpenAI's shapes."""

    model: str
    settings: Settings
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def next(self, answer: AnswerStream) -> Reply:
        """The next piece, or an ApiError. A bad request fails at the first piece, before a status is sent."""
        reply = await answer.next()
        if reply.failure is not None:
            raise self._error(reply.failure)
        return reply

    async def completion(self, answer: AnswerStream) -> ChatCompletion:
        """The whole answer as one object."""
        pieces = []
        while (reply := await self.next(answer)).end is None:
            pieces.append(reply.text)
        end = reply.end
        choice = ChatChoice(message=ChatMessage(content="".join(pieces)), finish_reason=end.reason)
        return ChatCompletion(id=self.id, created=self.created, model=self.model, choices=[choice], usage=_usage(end))

    async def chunks(self, first: Reply, answer: AnswerStream, *, usage: bool) -> AsyncIterator[bytes]:
        """The answer as server-sent events: the role, the text as it is generated, the finish reason."""
        yield self._chunk(Delta(role="assistant", content=""))
        reply = first
        try:
            while reply.end is None:
                yield self._chunk(Delta(content=reply.text))
                reply = await self.next(answer)
        except ApiError as error:  # the status has been sent already: OpenAI's client raises this event as an error
            yield format_sse_event(data_str=error_answer(error).model_dump_json())
            return
        yield self._event([ChunkChoice(delta=Delta(), finish_reason=reply.end.reason)])
        if usage:
            yield self._event([], _usage(reply.end))
        yield DONE

    def _error(self, failure: Failure) -> ApiError:
        """The message comes from the process that runs the model: paths of the host are removed from it."""
        wait = RETRY_SECONDS.get(failure.code)
        headers = {"Retry-After": str(wait)} if wait else None
        status, message = _STATUS.get(failure.code, 400), scrub(failure.message, self.settings)
        return ApiError(status, message, code=failure.code, param=failure.param, headers=headers)

    def _chunk(self, delta: Delta) -> bytes:
        return self._event([ChunkChoice(delta=delta)])

    def _event(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        chunk = ChatChunk(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)
        return format_sse_event(data_str=chunk.model_dump_json())


class AnswerStreamResponse(StreamingResponse):
    """A streamed answer. When the client disconnects, the answer is closed and the model stops generating."""

    def __init__(self, answer: AnswerStream, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(chunks, media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()


async def _while_connected(request: Request, answer: AnswerStream, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client disconnects first, the answer is closed and the request ends with 499."""
    working = asyncio.create_task(work)
    disconnected = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({working, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    except BaseException:
        answer.close()
        raise
    finally:
        working.cancel()
        disconnected.cancel()
    answer.close()
    raise ApiError(499, "the client has disconnected", code="client_closed_request")  # only the log shows it


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _usage(end: GenerationEnd) -> Usage:
    return Usage(
        prompt_tokens=end.prompt_tokens,
        completion_tokens=end.completion_tokens,
        total_tokens=end.prompt_tokens + end.completion_tokens,
    )

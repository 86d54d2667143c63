"""Chat completions: enough to see whether a fine-tune worked. docs/serving.md says how to serve a model for real."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from fastapi import APIRouter, Request
from fastapi.sse import format_sse_event
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.errors import ApiError
from onyx.api.http.scrubbing import scrub
from onyx.api.openai.chat_request import question_of, tried_model
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
STREAM = "text/event-stream"
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
"""Of failures that are not the request's own."""

RETRY_SECONDS = {"queue_full": 5, "no_memory": 30, "model_unloaded": 1, "timeout": 30, "unavailable": 5}


@router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses={200: {"content": {STREAM: {"schema": {"type": "string"}}}}},
)
async def create_chat_completion(
    request: Request, body: ChatBody, context: ContextDep, caller: CallerDep
) -> ChatCompletion | Response:
    """Ask a base model, a fine-tuned one or a checkpoint. One model is in memory at a time; trainings come first."""
    question = question_of(body, context.settings)
    tried = await tried_model(body.model, context, caller)
    talk = context.playground.ask(tried, question, caller.name)
    answer = Answering(body.model, context.settings)
    if not body.stream:
        return await _while_connected(request, talk, answer.whole(talk))
    first = await _while_connected(request, talk, answer.next(talk))
    usage = body.stream_options is not None and body.stream_options.include_usage
    return TalkResponse(talk, answer.chunks(first, talk, usage=usage))


@dataclass
class Answering:
    """One answer in OpenAI's shapes."""

    model: str
    settings: Settings
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def next(self, talk: AnswerStream) -> Reply:
        """The next piece. Whatever is wrong with a question shows before the first, while a status can still say so."""
        said = await talk.next()
        if said.failure is not None:
            raise self._problem(said.failure)
        return said

    async def whole(self, talk: AnswerStream) -> ChatCompletion:
        pieces = []
        while (said := await self.next(talk)).end is None:
            pieces.append(said.text)
        end = said.end
        choice = ChatChoice(message=ChatMessage(content="".join(pieces)), finish_reason=end.reason)
        return ChatCompletion(id=self.id, created=self.created, model=self.model, choices=[choice], usage=_usage(end))

    async def chunks(self, first: Reply, talk: AnswerStream, *, usage: bool) -> AsyncIterator[bytes]:
        """Server-sent events: the role, then the text as it comes, then why it ended."""
        yield self._chunk(Delta(role="assistant", content=""))
        said = first
        try:
            while said.end is None:
                yield self._chunk(Delta(content=said.text))
                said = await self.next(talk)
        except ApiError as error:  # the status is sent already: the client knows this event as an error
            yield format_sse_event(data_str=error_answer(error).model_dump_json())
            return
        yield self._event([ChunkChoice(delta=Delta(), finish_reason=said.end.reason)])
        if usage:
            yield self._event([], _usage(said.end))
        yield DONE

    def _problem(self, failure: Failure) -> ApiError:
        """Words of the process that has the model: paths of the host stay with the operator."""
        wait = RETRY_SECONDS.get(failure.code)
        headers = {"Retry-After": str(wait)} if wait else None
        status, message = _STATUS.get(failure.code, 400), scrub(failure.message, self.settings)
        return ApiError(status, message, code=failure.code, param=failure.param, headers=headers)

    def _chunk(self, delta: Delta) -> bytes:
        return self._event([ChunkChoice(delta=delta)])

    def _event(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        chunk = ChatChunk(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)
        return format_sse_event(data_str=chunk.model_dump_json())


class TalkResponse(StreamingResponse):
    """A stream that takes its question back when nobody reads it any more."""

    def __init__(self, talk: AnswerStream, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(chunks, media_type=STREAM, headers={"Cache-Control": "no-store"})
        self._talk = talk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._talk.close()


async def _while_connected(request: Request, talk: AnswerStream, work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to, unless whoever asked hangs up first: then the talk is closed."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else _nobody()
    except BaseException:
        talk.close()
        raise
    finally:
        working.cancel()
        leaving.cancel()


def _nobody() -> NoReturn:
    """For the log: there is no one to answer to."""
    raise ApiError(499, "whoever asked has left", code="client_closed_request")


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _usage(end: GenerationEnd) -> Usage:
    return Usage(
        prompt_tokens=end.prompt_tokens,
        completion_tokens=end.completion_tokens,
        total_tokens=end.prompt_tokens + end.completion_tokens,
    )

"""Bodies and answers of chat completions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from onyx.api.schemas.common import Answer, Body, Json, ModelName

MOST_MESSAGES = 2048

Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4096)]],
    Field(max_length=4),
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given, json_schema_input_type=str | list[str]),
]


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool | None = Field(default=None, description="Has no effect here")


class ChatBody(Body):
    """The parameters of OpenAI's client. One that is not supported is refused unless its value changes nothing."""

    model: ModelName
    messages: Annotated[list[Json], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, description="The older name of max_completion_tokens")] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, description="0: always the likeliest token")] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stops | None = Field(default=None, description="Up to 4 strings, or one, that end the answer")
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    user: str | None = Field(default=None, description="No effect here, nor have the next four")
    metadata: Json | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None

    n: Any = Field(default=None, description="1")
    tools: Any = Field(
        default=None, description="Not supported, like all that follow: refused unless the value changes nothing"
    )
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    logit_bias: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    store: Any = None


Finish = Literal["stop", "length"]


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatMessage(Answer):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Answer):
    index: int = 0
    message: ChatMessage
    logprobs: None = None
    finish_reason: Finish


class ChatCompletion(Answer):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(Answer):
    """The new part of an answer. Fields without news are left out, because some clients take a null for a change."""

    role: Literal["assistant"] | None = None
    content: str | None = None

    @model_serializer(mode="wrap")
    def _without_nulls(self, write: SerializerFunctionWrapHandler) -> Json:
        return {name: value for name, value in write(self).items() if value is not None}


class ChunkChoice(Answer):
    index: int = 0
    delta: Delta
    finish_reason: Finish | None = None


class ChatChunk(Answer):
    """A piece of an answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None

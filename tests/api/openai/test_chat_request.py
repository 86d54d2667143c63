from pathlib import Path
from typing import Any

import pytest

from onyx.api.http.errors import ApiError
from onyx.api.openai.chat_request import to_generate_request
from onyx.api.openai.schemas.chat import ChatBody
from onyx.settings import Settings
from onyx.training.contract.chat_protocol import GenerateRequest

MESSAGES = [{"role": "user", "content": "hello"}]


def generate(**more: Any) -> GenerateRequest:
    body = ChatBody.model_validate({"model": "onyx/tiny", "messages": MESSAGES} | more)
    return to_generate_request(body, Settings(home=Path("unused"), try_tokens=100))


def refused(**more: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        generate(**more)
    return caught.value


def test_messages_alone_give_the_defaults() -> None:
    assert generate() == GenerateRequest(messages=MESSAGES, max_tokens=100)


def test_all_supported_parameters() -> None:
    question = generate(max_completion_tokens=7, temperature=0, top_p=0.5, seed=-3, stop="END")
    expected = GenerateRequest(
        messages=MESSAGES, max_tokens=7, exact_tokens=True, temperature=0, top_p=0.5, seed=-3, stop=("END",)
    )
    assert question == expected
    assert generate(max_tokens=7, stop=["a", "b"]).stop == ("a", "b")


def test_content_in_parts_and_an_earlier_answer_are_accepted() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    earlier = {"role": "assistant", "content": "three", "refusal": None, "audio": None, "tool_calls": None}
    question = generate(messages=[{"role": "user", "content": parts}, earlier])
    assert question.messages == [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]


@pytest.mark.parametrize(
    ("name", "value", "harmless"),
    [
        ("n", 2, 1),
        ("tools", [{"type": "function", "function": {"name": "f"}}], []),
        ("tool_choice", "required", "none"),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("modalities", ["text", "audio"], ["text"]),
        ("audio", {"voice": "alloy", "format": "wav"}, None),
        ("logprobs", True, False),
        ("top_logprobs", 3, 0),
        ("logit_bias", {"50256": -100}, {}),
        ("frequency_penalty", 0.5, 0),
        ("presence_penalty", -0.5, 0.0),
        ("reasoning_effort", "high", None),
        ("store", True, False),
    ],
)
def test_unsupported_parameters_are_refused_by_name_unless_neutral(name: str, value: Any, harmless: Any) -> None:
    error = refused(**{name: value})
    assert (error.status_code, error.code, error.param) == (400, "unsupported_parameter", name)
    assert generate(**{name: harmless}) == generate()


def test_more_tokens_than_the_operator_allows_are_refused() -> None:
    error = refused(max_tokens=101)
    assert (error.param, error.message.partition(":")[0]) == (
        "max_tokens",
        "an answer here has at most 100 tokens (ONYX_TRY_TOKENS)",
    )
    assert refused(max_completion_tokens=101).param == "max_completion_tokens"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"role": "robot", "content": "x"}, "unrecognized_role"),
        ({"role": "user"}, "message_missing_key"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "data_type"),
    ],
)
def test_invalid_messages_are_refused(message: dict[str, Any], code: str) -> None:
    error = refused(messages=[message])
    assert (error.status_code, error.code, error.param) == (400, code, "messages")

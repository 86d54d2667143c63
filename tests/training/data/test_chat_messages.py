"""Messages of a chat: every finding code, and the form for templates."""

from typing import Any

import pytest

from onyx.training.data.chat_messages import check_messages, check_tools

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "yo"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
READ_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def codes(*messages: Any) -> list[str]:
    return [each.code for each in check_messages(list(messages))[2]]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("hi", "data_type"),
        ({"content": "hi"}, "message_missing_key"),
        ({"role": None, "content": "hi"}, "message_missing_key"),
        ({"role": "user"}, "message_missing_key"),
        ({"role": "user", "content": None}, "missing_content"),
        ({"role": "user", "content": ""}, "missing_content"),
        ({"role": "assistant", "content": ""}, "missing_content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "missing_content"),
        ({"role": "bot", "content": "hi"}, "unrecognized_role"),
        ({"role": ["user"], "content": "hi"}, "unrecognized_role"),
        ({"role": "user", "content": 3}, "data_type"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "data_type"),
        ({"role": "user", "content": "hi", "mood": "good"}, "message_unrecognized_key"),
        ({"role": "user", "content": "hi", "weight": 1}, "message_unrecognized_key"),
        ({"role": "assistant", "content": "hi", "weight": 0.5}, "data_type"),
        ({"role": "assistant", "content": "hi", "weight": True}, "data_type"),
        ({"role": "assistant", "content": "hi", "weight": "1"}, "data_type"),
        ({"role": "assistant", "tool_calls": "x"}, "data_type"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "data_type"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]}, "invalid_json"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}, "data_type"),
    ],
)
def test_each_bad_message_has_its_code(message: Any, expected: str) -> None:
    assert codes(USER, ASSISTANT, message) == [expected]


def test_a_chat_needs_an_assistant() -> None:
    assert codes(USER) == ["example_missing_assistant_message"]
    assert codes(USER, {"role": "bot", "content": "x"}) == ["unrecognized_role", "example_missing_assistant_message"]


def test_findings_name_the_message() -> None:
    _, _, found = check_messages([{"role": "x", "content": "a"}, ASSISTANT, {"role": "user"}])
    assert [each.message.split(":")[0] for each in found] == ["message 1", "message 3"]


def test_weights_say_what_is_trained_on() -> None:
    chat = [USER, {**ASSISTANT, "weight": 0}, USER, {**ASSISTANT, "weight": 1}, USER, {**ASSISTANT, "weight": None}]
    checked, trained, found = check_messages(chat)
    assert found == []
    assert trained == [False, False, False, True, False, True]
    assert all("weight" not in each for each in checked)


def test_tool_calls_get_the_form_that_templates_expect() -> None:
    chat = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "", "tool_call_id": "1"},
        {"role": "assistant", "function_call": {"name": "f", "arguments": ""}},
        {"role": "function", "name": "f", "content": "2"},
        {**ASSISTANT, "refusal": None},
    ]
    checked, _, found = check_messages(chat)
    assert found == []
    assert checked[1] == {"role": "assistant", "content": "", "tool_calls": [READ_CALL]}
    assert checked[3]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    assert checked[4] == {"role": "tool", "name": "f", "content": "2"}
    assert checked[5] == ASSISTANT
    assert CALL["function"]["arguments"] == '{"x": 1}'  # type: ignore[index] # the caller's own is not changed


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check_messages([{"role": "user", "content": parts}, ASSISTANT])[0][0]["content"] == "ab"


def test_tools_also_by_their_old_name() -> None:
    assert check_tools({}) == (None, [])
    assert check_tools({"tools": []}) == (None, [])
    assert check_tools({"tools": [{"type": "function"}]}) == ([{"type": "function"}], [])
    assert check_tools({"functions": [{"name": "f"}]}) == ([{"type": "function", "function": {"name": "f"}}], [])
    assert check_tools({"functions": ["f"]})[1][0].code == "data_type"

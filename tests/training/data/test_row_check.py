"""Rows, and every finding code."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.training.data.findings import Finding
from onyx.training.data.row_check import Chat, PromptCompletion, Text, check_row

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "yo"}


def codes(row: Any) -> list[str]:
    found = check_row(row)
    assert isinstance(found, list), found
    return [each.code for each in found]


def test_the_three_formats() -> None:
    assert check_row({"text": "a", "id": 3}) == Text("a")
    assert check_row({"prompt": "", "completion": "b"}) == PromptCompletion("", "b")
    assert check_row({"messages": [USER, ASSISTANT]}) == Chat([USER, ASSISTANT], [False, True], None)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([], ["data_type"]),
        ("text", ["data_type"]),
        (None, ["data_type"]),
        ({}, ["missing_messages_list"]),
        ({"messages": None}, ["missing_messages_list"]),
        ({"messages": []}, ["missing_messages_list"]),
        ({"messages": "x"}, ["missing_messages_list"]),
        ({"messages": [USER, ASSISTANT], "text": "a"}, ["ambiguous_format"]),
        ({"text": 3}, ["data_type"]),
        ({"text": " \n"}, ["missing_content"]),
        ({"prompt": "a"}, ["missing_key"]),
        ({"completion": "a"}, ["missing_key"]),
        ({"prompt": 1, "completion": None}, ["data_type", "data_type"]),
        ({"prompt": "a", "completion": ""}, ["missing_content"]),
        ({"messages": [USER, ASSISTANT], "tools": "x"}, ["data_type"]),
        ({"messages": [USER, ASSISTANT], "tools": ["x"]}, ["data_type"]),
        (Finding("invalid_json", "x"), ["invalid_json"]),
    ],
)
def test_each_bad_row_has_its_code(row: Any, expected: list[str]) -> None:
    assert codes(row) == expected


KEYS = st.sampled_from(["messages", "prompt", "completion", "text", "tools", "role", "content", "weight", "tool_calls"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["user", "assistant"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
)


@given(row=VALUES)
def test_the_check_takes_any_json(row: Any) -> None:
    found = check_row(row)
    assert isinstance(found, Text | PromptCompletion | Chat) or (
        found and all(isinstance(each, Finding) for each in found)
    )

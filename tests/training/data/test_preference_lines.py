"""Preference lines, and every finding code."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyx.training.data.findings import Finding
from onyx.training.data.preference_lines import Preference, check_line
from onyx.training.data.row_check import Chat, PromptCompletion, Text

USER = {"role": "user", "content": "hi"}
GOOD = {"role": "assistant", "content": "yo"}
BAD = {"role": "assistant", "content": "what?"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}
RESULT = {"role": "tool", "content": "3"}


def openai(**changes: Any) -> dict[str, Any]:
    row = {"input": {"messages": [USER]}, "preferred_output": [GOOD], "non_preferred_output": [BAD], **changes}
    return {name: value for name, value in row.items() if value is not None}


def found(row: Any, objective: Any = "dpo") -> list[tuple[str, str]]:
    wrong = check_line(row, objective)
    assert isinstance(wrong, list), wrong
    return [(each.code, each.message) for each in wrong]


EXPECTED = Preference(Chat([USER, GOOD], [False, True], None), Chat([USER, BAD], [False, True], None))


def test_both_names_of_openais_form() -> None:
    assert check_line(openai(), "dpo") == EXPECTED
    older = {"input": {"messages": [USER]}, "preferred_completion": [GOOD], "non_preferred_completion": [BAD]}
    assert check_line(older, "dpo") == EXPECTED


def test_both_answers_get_the_tools_and_earlier_turns_are_not_trained_on() -> None:
    given_input = {"messages": [USER, GOOD, USER], "tools": TOOLS, "parallel_tool_calls": False}
    row = openai(input=given_input, preferred_output=[CALL, RESULT, GOOD])
    pair = check_line(row, "dpo")
    assert isinstance(pair, Preference)
    assert isinstance(pair.preferred, Chat)
    assert isinstance(pair.rejected, Chat)
    assert pair.preferred.trained == [False, False, False, True, False, True]
    assert pair.rejected.trained == [False, False, False, True]
    assert pair.preferred.tools == pair.rejected.tools == TOOLS
    assert pair.preferred.messages[3]["tool_calls"][0]["function"]["arguments"] == {}


def test_the_plain_form_with_texts_with_messages_and_with_whole_chats() -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c", "score": 3}
    assert check_line(row, "dpo") == Preference(PromptCompletion("a", "b"), PromptCompletion("a", "c"))
    assert check_line({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}, "dpo") == EXPECTED
    assert check_line({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, "dpo") == EXPECTED


def test_a_line_for_both_objectives_is_read_for_the_jobs_own() -> None:
    both = {"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}
    assert check_line(both, "sft") == PromptCompletion("a", "b")
    assert check_line(both, "dpo") == Preference(PromptCompletion("a", "b"), PromptCompletion("a", "c"))


@pytest.mark.parametrize("row", [openai(), {"prompt": "a", "chosen": "b", "rejected": "c"}, {"chosen": 3}])
def test_sft_refuses_a_preference(row: dict[str, Any]) -> None:
    ((code, message),) = found(row, "sft")
    assert (code, 'set objective to "dpo"' in message) == ("wrong_objective", True)


@pytest.mark.parametrize("row", [{"text": "a"}, {"messages": [USER, GOOD]}, {"prompt": "a", "completion": "b"}])
def test_dpo_refuses_a_single_answer(row: dict[str, Any]) -> None:
    ((code, message),) = found(row)
    assert (code, 'set objective to "sft"' in message) == ("wrong_objective", True)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (None, ["data_type"]),
        ([], ["data_type"]),
        (Finding("invalid_json", "not JSON"), ["invalid_json"]),
        ({}, ["missing_messages_list"]),
        ({"prompt": "a"}, ["missing_messages_list"]),
        (openai(input=None), ["missing_messages_list"]),
        (openai(input={"messages": []}), ["missing_messages_list"]),
        (openai(input={"messages": "hi"}), ["missing_messages_list"]),
        (openai(preferred_output=None), ["missing_key"]),
        (openai(preferred_output="yo"), ["data_type"]),
        (openai(preferred_output=[], non_preferred_output=None), ["data_type", "missing_key"]),
        (openai(preferred_output=[USER, GOOD]), ["unrecognized_role"]),
        (openai(preferred_output=[RESULT]), ["example_missing_assistant_message"]),
        (openai(preferred_output=[{"role": "assistant", "content": ""}]), ["missing_content"]),
        (openai(preferred_output=[{"role": "bot", "content": "a"}]), ["unrecognized_role"]),
        (openai(input={"messages": [{"role": "user"}]}), ["message_missing_key"]),
        (openai(input={"messages": [USER], "tools": 3}), ["data_type"]),
        (openai(non_preferred_output=[GOOD]), ["identical_answers"]),
        (openai(chosen="a"), ["ambiguous_format"]),
        ({"prompt": "a", "chosen": "b"}, ["missing_key"]),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, ["data_type"]),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, ["missing_content"]),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, ["identical_answers"]),
        ({"prompt": "a", "chosen": [GOOD], "rejected": [BAD]}, ["data_type", "data_type"]),
        ({"chosen": [], "rejected": [USER, BAD]}, ["example_missing_assistant_message", "unrecognized_role"]),
    ],
)
def test_each_bad_line_has_its_codes(row: Any, expected: list[str]) -> None:
    assert [code for code, _ in found(row)] == expected


def test_a_finding_says_in_which_answer() -> None:
    ((_, message),) = found(openai(non_preferred_output=[{"role": "assistant", "contnt": "a", "content": "b"}]))
    assert message == "non_preferred_output: message 1: a message has no key 'contnt'"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "messages", "tools", "prompt"]), inner, max_size=3)
    ),
)


@given(
    row=st.dictionaries(
        st.sampled_from(
            ["input", "preferred_output", "non_preferred_completion", "prompt", "chosen", "rejected", "text"]
        ),
        json_values,
    )
)
def test_the_check_takes_any_json(row: dict[str, Any]) -> None:
    for objective in ("sft", "dpo"):
        assert isinstance(check_line(row, objective), Preference | Text | PromptCompletion | Chat | list)

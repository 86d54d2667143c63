"""Samples become texts."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from onyx.training.data.chat_messages import check_messages
from onyx.training.data.findings import Finding
from onyx.training.data.render import Rendered, Renderer, TemplateFailedError, Turns, TurnsUnknownError
from onyx.training.data.row_check import Chat, PromptCompletion, Text
from tests.training.data.chats import CHATS

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def test_the_three_formats(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    assert renderer.render(Text("abc")) == Rendered("abc", [(0, 3)], chat=False)
    assert renderer.render(PromptCompletion("ab", "c")) == Rendered("abc", [(2, 3)], chat=False)
    chat = renderer.render(Chat(MESSAGES, [False, True], None))
    assert isinstance(chat, Rendered)
    assert chat.chat
    assert [chat.text[first:last] for first, last in chat.spans] == ["yo<|im_end|>"]


@pytest.mark.parametrize(("text", "code"), [("a\0b", "nul_byte"), ("a\ud800", "invalid_unicode")])
def test_text_that_cannot_be_encoded_is_a_finding(tokenizer: Any, text: str, code: str) -> None:
    for sample in (
        Text(text),
        PromptCompletion(text, "x"),
        Chat([MESSAGES[0], {**MESSAGES[1], "content": text}], [False, True], None),
    ):
        found = Renderer(tokenizer).render(sample)
        assert isinstance(found, Finding)
        assert found.code == code


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no tools here') }}", "no tools here"),
        ("{% for m in messages + messages %}{{ m['content'] }}{% endfor %}", "one assistant turn per line"),
        ("{{ messages[0].nothing.at_all }}", "refuses"),
    ],
)
def test_a_template_that_does_not_work_is_a_finding(tokenizer: Any, template: str, message: str) -> None:
    tokenizer.chat_template = template
    found = Renderer(tokenizer).render(Chat([*MESSAGES, *MESSAGES], [False, True] * 2, None))
    assert isinstance(found, Finding)
    assert found.code == "chat_template"
    assert message in found.message


SAME_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TAGGED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Like Qwen3's: only the answer to the last question shows its (empty) reasoning.
REWRITING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.index0 > ns.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Like Llama 2's: a question and its answer are one block, and roles must alternate.
BLOCKS = (
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "yo"}


def turns_of(tokenizer: Any, chat: Any, template: str | None = None) -> list[str]:
    if template is not None:
        tokenizer.chat_template = template
    messages, trained, found = check_messages(list(chat))
    assert not found
    text, spans = Turns(tokenizer).find(messages, trained, None)
    return [text[first:last] for first, last in spans]


def wanted(chat: Any) -> list[str]:
    return [each["content"] for each in chat if each["role"] == "assistant" and each.get("weight") != 0]


@SAME_FIXTURE
@given(chat=CHATS)
@pytest.mark.parametrize("template", [None, TAGGED], ids=["prefixes", "tags"])
def test_a_turn_is_its_content_and_its_end_token(tokenizer: Any, template: str | None, chat: Any) -> None:
    assert turns_of(tokenizer, chat, template) == [each + "<|im_end|>" for each in wanted(chat)]


@SAME_FIXTURE
@given(chat=CHATS)
def test_a_template_that_rewrites_earlier_turns(tokenizer: Any, chat: Any) -> None:
    roles = [each["role"] for each in chat]
    last = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else -1
    expected = [
        ("<think>\n\n</think>\n\n" if at > last else "") + each["content"] + "<|im_end|>"
        for at, each in enumerate(chat)
        if each["role"] == "assistant" and each.get("weight") != 0
    ]
    assert turns_of(tokenizer, chat, REWRITING) == expected


def test_a_template_that_joins_a_question_and_its_answer(tokenizer: Any) -> None:
    chat = [USER, {"role": "assistant", "content": " a "}, USER, ASSISTANT]
    assert turns_of(tokenizer, chat, BLOCKS) == [" a <|im_end|>", " yo <|im_end|>"]


def test_a_template_that_refuses_the_chat(tokenizer: Any) -> None:
    with pytest.raises(TemplateFailedError, match="roles must alternate"):
        turns_of(tokenizer, [USER, USER, ASSISTANT], BLOCKS)


def test_turns_that_cannot_be_found_are_an_error(tokenizer: Any) -> None:
    whole_chat_twice = "{% for m in messages + messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(TurnsUnknownError):
        turns_of(tokenizer, [USER, ASSISTANT, USER, {**ASSISTANT, "content": "x"}], whole_chat_twice)


def test_tool_calls_are_part_of_the_turn(tokenizer: Any) -> None:
    call = {"function": {"name": "f", "arguments": '{"x": "é"}'}}
    chat = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "1"}, ASSISTANT]
    rendered = '[{"type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}]<|im_end|>'
    assert turns_of(tokenizer, chat) == [rendered, "yo<|im_end|>"]


def test_the_template_gets_the_tools(tokenizer: Any) -> None:
    text, _ = Turns(tokenizer).find([USER, ASSISTANT], [False, True], [{"name": "f"}])
    assert text.startswith('<|im_start|>tools\n[{"name": "f"}]')


def test_a_developer_becomes_system_for_templates_that_do_not_know_the_role(tokenizer: Any) -> None:
    chat = [{"role": "developer", "content": "be"}, ASSISTANT]
    text, _ = Turns(tokenizer).find(chat, [False, True], None)
    assert text.startswith("<|im_start|>system\nbe")
    tokenizer.chat_template = "{# developer #}" + tokenizer.chat_template
    text, _ = Turns(tokenizer).find(chat, [False, True], None)
    assert text.startswith("<|im_start|>developer\nbe")

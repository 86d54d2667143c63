"""Samples as texts."""

from typing import Any

import pytest

from onyx.training.data.check import Chat, Pair, Text
from onyx.training.data.findings import Finding
from onyx.training.data.render import Rendered, Renderer

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def test_the_three_formats(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    assert renderer.render(Text("abc")) == Rendered("abc", [(0, 3)], chat=False)
    assert renderer.render(Pair("ab", "c")) == Rendered("abc", [(2, 3)], chat=False)
    chat = renderer.render(Chat(MESSAGES, [False, True], None))
    assert isinstance(chat, Rendered)
    assert chat.chat
    assert [chat.text[first:last] for first, last in chat.spans] == ["yo<|im_end|>"]


@pytest.mark.parametrize(("text", "code"), [("a\0b", "nul_byte"), ("a\ud800", "invalid_unicode")])
def test_what_is_no_text(tokenizer: Any, text: str, code: str) -> None:
    for sample in (
        Text(text),
        Pair(text, "x"),
        Chat([MESSAGES[0], {**MESSAGES[1], "content": text}], [False, True], None),
    ):
        found = Renderer(tokenizer).render(sample)
        assert isinstance(found, Finding)
        assert found.code == code


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('no tools here') }}", "no tools here"),
        ("{% for m in messages + messages %}{{ m['content'] }}{% endfor %}", "one assistant turn per line"),
        ("{{ messages[0].nothing.at_all }}", "refuses"),
    ],
)
def test_a_template_that_does_not_work_is_a_finding(tokenizer: Any, template: str, said: str) -> None:
    tokenizer.chat_template = template
    found = Renderer(tokenizer).render(Chat([*MESSAGES, *MESSAGES], [False, True] * 2, None))
    assert isinstance(found, Finding)
    assert found.code == "chat_template"
    assert said in found.message

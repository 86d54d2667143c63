"""A sample becomes one text, with the spans of characters that are trained on."""

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from onyx.training.data.findings import Finding
from onyx.training.data.row_check import Chat, PromptCompletion, Sample

Span = tuple[int, int]
Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None

GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
MARKER = "\ue0f0\ue0f1"
"""From Unicode's private use area, so no text begins or ends with it."""


class TemplateFailedError(Exception):
    """The template cannot render this chat."""


class TurnsUnknownError(Exception):
    """The turns cannot be found in the template's output."""


class Turns:
    """Renders chats with a tokenizer's template, and finds the assistant's turns in the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = tuple(
            sorted(
                {each.content for each in tokenizer.added_tokens_decoder.values() if each.special}
                | set(tokenizer.all_special_tokens)
            )
        )

    def find(self, messages: Messages, trained: list[bool], tools: Tools) -> tuple[str, list[Span]]:
        """The chat as text, and the spans of the turns that are trained on."""
        template = self._tokenizer.get_chat_template(tools=tools)
        messages = _with_known_roles(messages, template)
        if GENERATION_TAG.search(template):
            text, spans = self._run(template, messages, tools, return_assistant_tokens_mask=True)
            if len(spans) == sum(each["role"] == "assistant" for each in messages):
                assistants = [t for t, each in zip(trained, messages, strict=True) if each["role"] == "assistant"]
                return text, [span for span, wanted in zip(spans, assistants, strict=True) if wanted]
        text = self._render(messages, tools)
        wanted = [index for index, flag in enumerate(trained) if flag]
        return text, [self._trim(text, self._turn(text, messages, tools, index)) for index in wanted]

    def prompt(self, messages: Messages) -> str:
        """The chat as text, up to where the assistant's next turn begins."""
        return self._render(_with_known_roles(messages, self._tokenizer.get_chat_template()), None, prompt=True)

    def _turn(self, text: str, messages: Messages, tools: Tools, index: int) -> Span:
        """The turn is what its message adds to the text of the messages before it.

        This fails for templates that rewrite earlier turns. Then a second rendering with a marker as the content helps.
        """
        try:
            before = self._render(messages[:index], tools, prompt=True)
            through = text if index + 1 == len(messages) else self._render(messages[: index + 1], tools)
        except TemplateFailedError:
            return self._by_marker(text, messages, tools, index)
        if text.startswith(before) and text.startswith(through) and len(before) <= len(through):
            return len(before), len(through)
        start = len(before) if text.startswith(before) else None
        return self._by_marker(text, messages, tools, index, start)

    def _by_marker(self, text: str, messages: Messages, tools: Tools, index: int, start: int | None = None) -> Span:
        message = messages[index]
        if not message["content"] or message.get("tool_calls"):
            raise TurnsUnknownError
        marked = [*messages[:index], {**message, "content": MARKER}, *messages[index + 1 :]]
        other = self._render(marked, tools)
        if other.count(MARKER) != 1:
            raise TurnsUnknownError
        head, tail = other.split(MARKER)
        if not text.startswith(head) or not text.endswith(tail) or len(head) + len(tail) > len(text):
            raise TurnsUnknownError
        end = len(text) - len(tail)
        closing = self._closing(messages[:index], message, tools)
        return start if start is not None else len(head), end + _common(text[end:], closing)

    def _closing(self, before: Messages, message: dict[str, Any], tools: Tools) -> str:
        try:
            alone = self._render([*before, {**message, "content": MARKER}], tools)
        except TemplateFailedError:
            return ""
        return alone.split(MARKER)[-1] if MARKER in alone else ""

    def _trim(self, text: str, span: Span) -> Span:
        """Without the line break after an end-of-turn token: generation stops at the token, so it is not learned."""
        start, end = span
        turn = text[start:end].rstrip()
        return (start, start + len(turn)) if turn.endswith(self._special) else span

    def _render(self, messages: Messages, tools: Tools, *, prompt: bool = False) -> str:
        template = self._tokenizer.get_chat_template(tools=tools)
        return self._run(template, messages, tools, add_generation_prompt=prompt)[0]

    def _run(self, template: str, messages: Messages, tools: Tools, **options: bool) -> tuple[str, list[Span]]:
        # As apply_chat_template does, which refuses an empty chat and does not return what the tags mark.
        from transformers.utils.chat_template_utils import render_jinja_template

        known: dict[str, Any] = {**self._tokenizer.special_tokens_map, **options}
        try:
            rendered: Any = render_jinja_template(
                [messages], tools=list(tools or ()) or None, chat_template=template, **known
            )
        except Exception as error:  # a template is a foreign program and can raise anything
            raise TemplateFailedError(str(error).strip().split("\n", 1)[0] or type(error).__name__) from error
        texts, spans = rendered
        return texts[0], [(first, last) for first, last in spans[0]] if spans else []


def _with_known_roles(messages: Messages, template: str) -> Messages:
    """Most templates know the role "developer" only by its older name, "system"."""
    if "developer" in template:
        return messages
    return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]


def _common(one: str, other: str) -> int:
    """The length of the longest common beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass(frozen=True, slots=True)
class Rendered:
    """A sample as one text."""

    text: str
    spans: list[Span]
    """The characters that are trained on, as (first, end), in order."""

    chat: bool
    """A chat template writes its own special tokens. Other texts get the tokenizer's, and an end token."""


class Renderer:
    """Renders samples with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._turns = Turns(tokenizer)

    def render(self, sample: Sample) -> Rendered | Finding:
        """The sample's text, or why there is none."""
        if isinstance(sample, Chat):
            rendered = self._chat(sample)
        elif isinstance(sample, PromptCompletion):
            text = sample.prompt + sample.completion
            rendered = Rendered(text, [(len(sample.prompt), len(text))], chat=False)
        else:
            rendered = Rendered(sample.text, [(0, len(sample.text))], chat=False)
        return rendered if isinstance(rendered, Finding) else _checked(rendered)

    def _chat(self, chat: Chat) -> Rendered | Finding:
        try:
            text, spans = self._turns.find(chat.messages, chat.trained, chat.tools)
        except TemplateFailedError as error:
            return Finding("chat_template", f"the model's chat template refuses this chat: {error}")
        except TurnsUnknownError:
            return Finding(
                "chat_template",
                "the model's chat template rewrites earlier turns, so the assistant's turns cannot be found in the "
                "text: give one assistant turn per line",
            )
        return Rendered(text, spans, chat=True)


def _checked(rendered: Rendered) -> Rendered | Finding:
    if "\0" in rendered.text:
        return Finding("nul_byte", "the text has a NUL character: it is not plain text")
    try:
        rendered.text.encode("utf-8")
    except UnicodeEncodeError:
        return Finding("invalid_unicode", "the text has half of a surrogate pair: it is not valid Unicode")
    return rendered

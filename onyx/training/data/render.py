"""From a sample to its text, and which characters of it are trained on."""

from dataclasses import dataclass
from typing import Any

from onyx.training.data.check import Chat, Pair, Sample
from onyx.training.data.findings import Finding
from onyx.training.data.turns import Span, TemplateFailedError, Turns, TurnsUnknownError


@dataclass(frozen=True, slots=True)
class Rendered:
    """A sample as one text."""

    text: str
    spans: list[Span]
    """What is trained on: characters from … to, in order."""

    chat: bool
    """A chat template writes its own special tokens; other texts get the tokenizer's, and an end that is trained on."""


class Renderer:
    """Renders samples for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._turns = Turns(tokenizer)

    def render(self, sample: Sample) -> Rendered | Finding:
        """The sample's text, or why it has none."""
        if isinstance(sample, Chat):
            rendered = self._chat(sample)
        elif isinstance(sample, Pair):
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
                "the model's chat template rewrites earlier turns, so that what the assistant said cannot be told "
                "from the rest: give one assistant turn per line",
            )
        return Rendered(text, spans, chat=True)


def _checked(rendered: Rendered) -> Rendered | Finding:
    if "\0" in rendered.text:
        return Finding("nul_byte", "the text has a NUL character: it is not plain text")
    try:
        rendered.text.encode("utf-8")
    except UnicodeEncodeError:
        return Finding("invalid_unicode", "the text has half of a surrogate pair: it is not Unicode")
    return rendered

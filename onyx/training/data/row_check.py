"""Checks a row: it becomes a sample (text, prompt with completion, or chat) or a list of findings. Needs no torch."""

from dataclasses import dataclass
from typing import Any

from onyx.training.data.chat_messages import check_messages, check_tools
from onyx.training.data.findings import Finding


@dataclass(frozen=True, slots=True)
class Text:
    """A text, trained on as a whole."""

    text: str


@dataclass(frozen=True, slots=True)
class PromptCompletion:
    """A prompt with its completion. Only the completion is trained on."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat. Only the assistant's messages with weight 1 are trained on."""

    messages: list[dict[str, Any]]
    trained: list[bool]
    """For each message, whether it is trained on."""

    tools: list[dict[str, Any]] | None


Sample = Text | PromptCompletion | Chat


def check_row(row: Any) -> Sample | list[Finding]:
    """The sample in a row. Columns that Onyx does not know are ignored."""
    if isinstance(row, Finding):
        return [row]
    if not isinstance(row, dict):
        return [Finding("data_type", f"a line must be a JSON object, not {kind(row)}")]
    kinds = [each for each in ("messages", "prompt", "text") if each in row]
    if "completion" in row and "prompt" not in kinds:
        kinds.append("prompt")
    if len(kinds) > 1:
        return [Finding("ambiguous_format", f"the line has {' and '.join(kinds)}: give only one of them")]
    if kinds == ["text"]:
        return _text(row)
    return _pair(row) if kinds == ["prompt"] else _chat(row)


def kind(value: Any) -> str:
    """The name of a value's JSON type."""
    if value is None:
        return "null"
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "a number")


def _text(row: dict[str, Any]) -> Sample | list[Finding]:
    text = row["text"]
    if not isinstance(text, str):
        return [Finding("data_type", f"text must be a string, not {kind(text)}")]
    return Text(text) if text.strip() else [Finding("missing_content", "the text is empty")]


def _pair(row: dict[str, Any]) -> Sample | list[Finding]:
    found = []
    for name in ("prompt", "completion"):
        if name not in row:
            found.append(Finding("missing_key", f"the line has no {name}"))
        elif not isinstance(row[name], str):
            found.append(Finding("data_type", f"{name} must be a string, not {kind(row[name])}"))
    if not found and not row["completion"]:
        found.append(Finding("missing_content", "the completion is empty"))
    return found or PromptCompletion(row["prompt"], row["completion"])


def _chat(row: dict[str, Any]) -> Sample | list[Finding]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        wanted = "a line needs messages (a list), prompt and completion, or text"
        return [Finding("missing_messages_list", "messages must be a non-empty list" if "messages" in row else wanted)]
    checked, trained, found = check_messages(messages)
    tools, tool_findings = check_tools(row)
    found += tool_findings
    return found or Chat(checked, trained, tools)

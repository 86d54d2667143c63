"""Checks the messages of a chat and brings them into the form that chat templates expect. Needs no torch."""

import json
from typing import Any

from onyx.training.data.findings import Finding

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
KEYS = ("role", "content", "name", "weight", "tool_calls", "tool_call_id", "function_call", "reasoning_content")
ASSISTANT_KEYS = ("weight", "tool_calls", "function_call", "reasoning_content")

Message = dict[str, Any]

NO_ASSISTANT = Finding(
    "example_missing_assistant_message", "there is no message of the assistant, so nothing can be learned"
)


def check_messages(messages: list[Any]) -> tuple[list[Message], list[bool], list[Finding]]:
    """A whole chat: its messages for the template, which of them are trained on, and all that is wrong."""
    checked, trained, found = check_each(messages)
    if not any(isinstance(each, dict) and each.get("role") == "assistant" for each in messages):
        found.append(NO_ASSISTANT)
    return checked, trained, found


def check_each(messages: list[Any]) -> tuple[list[Message], list[bool], list[Finding]]:
    """The same for messages that are a part of a chat."""
    checked: list[Message] = []
    trained: list[bool] = []
    found: list[Finding] = []
    for number, raw in enumerate(messages, 1):
        wrong = _check(raw)
        found += [each.at(f"message {number}") for each in wrong]
        if not wrong:
            message, problem = _normalize(raw)
            found += [problem.at(f"message {number}")] if problem else []
            checked.append(message)
            trained.append(raw["role"] == "assistant" and raw.get("weight") != 0)
    return checked, trained, found


def check_tools(row: dict[str, Any]) -> tuple[list[dict[str, Any]] | None, list[Finding]]:
    """The tools of a line, also under their old name `functions`."""
    tools = row.get("tools")
    if tools is None and row.get("functions") is not None:
        tools = row["functions"]
        if isinstance(tools, list):
            tools = [{"type": "function", "function": each} if isinstance(each, dict) else each for each in tools]
    if tools is None:
        return None, []
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        return None, [Finding("data_type", "tools must be a list of objects")]
    return tools or None, []


def _check(raw: Any) -> list[Finding]:
    if not isinstance(raw, dict):
        return [Finding("data_type", "a message must be an object with role and content")]
    # Many writers set absent keys to null.
    given = {key for key, value in raw.items() if value is not None}
    found = [Finding("message_unrecognized_key", f"a message has no key {key!r}") for key in sorted(given - set(KEYS))]
    role = raw.get("role")
    if "role" not in given:
        return [*found, Finding("message_missing_key", "role is missing")]
    if not isinstance(role, str) or role not in ROLES:
        return [*found, Finding("unrecognized_role", f"role must be one of {', '.join(ROLES)}, not {role!r}")]
    if role != "assistant":
        found += [
            Finding("message_unrecognized_key", f"only messages of the assistant have {key}")
            for key in sorted(given & set(ASSISTANT_KEYS))
        ]
    return found + _check_content(raw, role) + _check_weight(raw) + _check_calls(raw)


def _check_content(raw: Message, role: str) -> list[Finding]:
    calls = raw.get("tool_calls") or raw.get("function_call")
    content = raw.get("content")
    if content is None:
        if calls:
            return []
        code = "missing_content" if "content" in raw else "message_missing_key"
        return [Finding(code, "content is missing")]
    if isinstance(content, list):
        parts = [each.get("text") if isinstance(each, dict) else None for each in content]
        if not all(isinstance(each, str) for each in parts):
            return [Finding("data_type", "content must be text: Onyx cannot train on other parts")]
        content = "".join(str(each) for each in parts)
    if not isinstance(content, str):
        return [Finding("data_type", "content must be a string")]
    # A tool may answer with nothing.
    if not content and not calls and role not in ("tool", "function"):
        return [Finding("missing_content", "content is empty")]
    return []


def _check_weight(raw: Message) -> list[Finding]:
    weight = raw.get("weight")
    if weight is None or (not isinstance(weight, bool) and weight in (0, 1)):
        return []
    return [Finding("data_type", f"weight must be 0 or 1, not {weight!r}")]


def _check_calls(raw: Message) -> list[Finding]:
    calls = raw.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return [Finding("data_type", "tool_calls must be a list")]
    functions = [each.get("function") if isinstance(each, dict) else None for each in calls or []]
    if raw.get("function_call") is not None:
        functions.append(raw["function_call"])
    if all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in functions):
        return []
    return [Finding("data_type", "a tool call must be {function: {name, arguments}}")]


def _normalize(raw: Message) -> tuple[Message, Finding | None]:
    """The form for templates: content is a string, calls are in tool_calls, arguments are objects instead of text."""
    message = {key: value for key, value in raw.items() if value is not None and key not in ("weight", "function_call")}
    content = message.get("content", "")
    message["content"] = "".join(each["text"] for each in content) if isinstance(content, list) else content
    if message["role"] == "function":
        message["role"] = "tool"
    calls = list(message.get("tool_calls") or ())
    if raw.get("function_call") is not None:
        calls.append({"type": "function", "function": raw["function_call"]})
    if not calls:
        message.pop("tool_calls", None)
        return message, None
    message["tool_calls"] = [{"type": "function", **each, "function": dict(each["function"])} for each in calls]
    return message, _parse_arguments(message["tool_calls"])


def _parse_arguments(calls: list[dict[str, Any]]) -> Finding | None:
    for call in calls:
        arguments = call["function"].get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                return Finding("invalid_json", f"the arguments for {call['function']['name']} are not JSON")
        if not isinstance(arguments, dict):
            return Finding("data_type", f"the arguments for {call['function']['name']} must be an object")
        call["function"]["arguments"] = arguments
    return None

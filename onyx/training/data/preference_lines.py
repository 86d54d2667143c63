"""Preference lines: what was asked, and two answers of which the first is preferred. Needs no torch."""

from dataclasses import dataclass
from typing import Any

from onyx.training.contract.spec import Objective
from onyx.training.data.chat_messages import check_each, check_tools
from onyx.training.data.findings import Finding
from onyx.training.data.row_check import Chat, PromptCompletion, Sample, check_row, kind

PREFERRED = ("preferred_output", "preferred_completion")
NON_PREFERRED = ("non_preferred_output", "non_preferred_completion")
PLAIN = ("chosen", "rejected")
MARKS = frozenset((*PREFERRED, *NON_PREFERRED, *PLAIN))
"""A line with one of these is a preference,"""

SUPERVISED = frozenset(("messages", "completion", "text"))
"""and one with one of these is something to imitate."""

ANSWERING = ("assistant", "tool", "function")
"""Who may speak in an answer."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Two samples that differ in what is trained on."""

    preferred: PromptCompletion | Chat
    rejected: PromptCompletion | Chat


def check_line(row: Any, objective: Objective) -> Sample | Preference | list[Finding]:
    """What a line holds for a job with that objective."""
    if not isinstance(row, dict):
        return check_row(row)
    preference, supervised = not MARKS.isdisjoint(row), not SUPERVISED.isdisjoint(row)
    if objective == "sft":
        return _WRONG_FOR_SFT if preference and not supervised else check_row(row)
    return _WRONG_FOR_DPO if supervised and not preference else check_preference(row)


_WRONG_FOR_SFT = [
    Finding("wrong_objective", 'the line is a preference pair: set objective to "dpo", or give what is to be learned')
]
_WRONG_FOR_DPO = [
    Finding("wrong_objective", 'the line has one answer and dpo compares two: set objective to "sft", or give both')
]


def check_preference(row: dict[str, Any]) -> Preference | list[Finding]:
    """OpenAI's form (input, preferred_output, non_preferred_output) or the plain one (prompt, chosen, rejected)."""
    plain, named = not row.keys().isdisjoint(PLAIN), not row.keys().isdisjoint(MARKS - set(PLAIN))
    if plain and named:
        return [Finding("ambiguous_format", "the line has chosen or rejected and preferred_output: give one of them")]
    found = _plain(row) if plain else _openai(row)
    if isinstance(found, Preference) and found.preferred == found.rejected:
        return [same_answers()]
    return found


def same_answers(where: str = "") -> Finding:
    """Nothing can be preferred to itself."""
    return Finding("identical_answers", f"the two answers are the same{where}: there is nothing to prefer")


def _plain(row: dict[str, Any]) -> Preference | list[Finding]:
    answers = [row.get(name) for name in PLAIN]
    if all(isinstance(each, list) for each in answers) and isinstance(row.get("prompt", []), list):
        prompt = row.get("prompt")
        shared = 0 if prompt else _shared(*answers)
        return _chats(prompt or answers[0][:shared], None, *((n, row[n][shared:]) for n in PLAIN))  # type: ignore[index]
    found = []
    for name in ("prompt", *PLAIN):
        if name not in row:
            found.append(Finding("missing_key", f"the line has no {name}"))
        elif not isinstance(row[name], str):
            wanted = "a string (or, like the others, a list of messages)"
            found.append(Finding("data_type", f"{name} must be {wanted}, not {kind(row[name])}"))
        elif not row[name] and name != "prompt":
            found.append(Finding("missing_content", f"{name} is empty"))
    return found or Preference(
        PromptCompletion(row["prompt"], row["chosen"]), PromptCompletion(row["prompt"], row["rejected"])
    )


def _shared(one: Any, other: Any) -> int:
    """How many messages two whole chats begin with alike: what was asked. The last of a chat is never part of it."""
    most = min(len(one), len(other)) - 1
    return next((index for index in range(most) if one[index] != other[index]), max(0, most))


def _openai(row: dict[str, Any]) -> Preference | list[Finding]:
    given = row.get("input")
    if not isinstance(given, dict) or not isinstance(given.get("messages"), list) or not given["messages"]:
        return [Finding("missing_messages_list", "input must be an object with messages, a list that is not empty")]
    answers, found = [], []
    for names in (PREFERRED, NON_PREFERRED):
        name = next((each for each in names if each in row), None)
        if name is None:
            found.append(Finding("missing_key", f"the line has no {names[0]}"))
        elif not isinstance(row[name], list) or not row[name]:
            found.append(Finding("data_type", f"{name} must be a list with messages"))
        else:
            answers.append((name, row[name]))
    tools, wrong = check_tools(given)
    found += wrong
    return found or _chats(given["messages"], tools, *answers)


def _chats(
    asked: list[Any], tools: list[dict[str, Any]] | None, preferred: tuple[str, Any], rejected: tuple[str, Any]
) -> Preference | list[Finding]:
    messages, _, found = check_each(asked)
    chats = []
    for name, answer in (preferred, rejected):
        said, trained, wrong = check_each(answer)
        found += [Finding(each.code, f"{name}: {each.message}") for each in wrong + _answering(said, wrong)]
        chats.append(Chat([*messages, *said], [False] * len(messages) + trained, tools))
    return found or Preference(chats[0], chats[1])


def _answering(said: list[dict[str, Any]], wrong: list[Finding]) -> list[Finding]:
    strangers = sorted({each["role"] for each in said} - set(ANSWERING))
    if strangers:
        return [Finding("unrecognized_role", f"an answer is the assistant's, with its tools': not of {strangers[0]}")]
    if not wrong and not any(each["role"] == "assistant" for each in said):
        return [Finding("example_missing_assistant_message", "no message is the assistant's: nothing to learn")]
    return []

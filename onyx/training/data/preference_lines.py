"""Checks preference lines: a prompt with two answers, of which one is preferred. Needs no torch."""

from dataclasses import dataclass
from typing import Any

from onyx.training.contract.spec import Objective
from onyx.training.data.chat_messages import NO_ASSISTANT, check_each, check_tools
from onyx.training.data.findings import Finding
from onyx.training.data.row_check import Chat, PromptCompletion, Sample, check_row, kind

PREFERRED = ("preferred_output", "preferred_completion")
NON_PREFERRED = ("non_preferred_output", "non_preferred_completion")
PLAIN = ("chosen", "rejected")
PREFERENCE_KEYS = frozenset((*PREFERRED, *NON_PREFERRED, *PLAIN))
"""A line with one of these keys is for dpo."""

SUPERVISED_KEYS = frozenset(("messages", "completion", "text"))
"""A line with one of these keys is for sft."""

ANSWER_ROLES = ("assistant", "tool", "function")
"""The roles that messages of an answer may have."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Two samples with the same prompt and different answers."""

    preferred: PromptCompletion | Chat
    rejected: PromptCompletion | Chat


def check_line(row: Any, objective: Objective) -> Sample | Preference | list[Finding]:
    """The sample or the pair in a line, for a job with this objective."""
    if not isinstance(row, dict):
        return check_row(row)
    preference, supervised = not PREFERENCE_KEYS.isdisjoint(row), not SUPERVISED_KEYS.isdisjoint(row)
    if objective == "sft":
        return _WRONG_FOR_SFT if preference and not supervised else check_row(row)
    return _WRONG_FOR_DPO if supervised and not preference else check_preference(row)


_WRONG_FOR_SFT = [
    Finding("wrong_objective", 'the line is a preference pair: set objective to "dpo", or give one answer per line')
]
_WRONG_FOR_DPO = [
    Finding("wrong_objective", 'the line has one answer and dpo compares two: set objective to "sft", or give two')
]


def check_preference(row: dict[str, Any]) -> Preference | list[Finding]:
    """OpenAI's form (input, preferred_output, non_preferred_output) or the plain one (prompt, chosen, rejected)."""
    plain, named = not row.keys().isdisjoint(PLAIN), not row.keys().isdisjoint(PREFERENCE_KEYS - set(PLAIN))
    if plain and named:
        return [Finding("ambiguous_format", "the line has keys of both forms, chosen and preferred_output: use one")]
    found = _plain(row) if plain else _openai(row)
    if isinstance(found, Preference) and found.preferred == found.rejected:
        return [identical_answers()]
    return found


def identical_answers(where: str = "") -> Finding:
    """dpo can learn nothing from such a line. `where` says in which form the answers are the same."""
    return Finding("identical_answers", f"the two answers are the same{where}: none is better")


def _plain(row: dict[str, Any]) -> Preference | list[Finding]:
    answers = [row.get(name) for name in PLAIN]
    if all(isinstance(each, list) for each in answers) and isinstance(row.get("prompt", []), list):
        prompt = row.get("prompt")
        shared = 0 if prompt else _shared_messages(*answers)
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


def _shared_messages(one: Any, other: Any) -> int:
    """How many first messages of two whole chats are the same: the prompt, which never includes a chat's last."""
    most = min(len(one), len(other)) - 1
    return next((index for index in range(most) if one[index] != other[index]), max(0, most))


def _openai(row: dict[str, Any]) -> Preference | list[Finding]:
    given = row.get("input")
    if not isinstance(given, dict) or not isinstance(given.get("messages"), list) or not given["messages"]:
        return [Finding("missing_messages_list", "input must be an object with messages, a non-empty list")]
    answers, found = [], []
    for names in (PREFERRED, NON_PREFERRED):
        name = next((each for each in names if each in row), None)
        if name is None:
            found.append(Finding("missing_key", f"the line has no {names[0]}"))
        elif not isinstance(row[name], list) or not row[name]:
            found.append(Finding("data_type", f"{name} must be a non-empty list of messages"))
        else:
            answers.append((name, row[name]))
    tools, wrong = check_tools(given)
    found += wrong
    return found or _chats(given["messages"], tools, *answers)


def _chats(
    prompt: list[Any], tools: list[dict[str, Any]] | None, preferred: tuple[str, Any], rejected: tuple[str, Any]
) -> Preference | list[Finding]:
    messages, _, found = check_each(prompt)
    chats = []
    for name, answer in (preferred, rejected):
        checked, trained, wrong = check_each(answer)
        found += [each.at(name) for each in wrong + _check_roles(checked, wrong)]
        chats.append(Chat([*messages, *checked], [False] * len(messages) + trained, tools))
    return found or Preference(chats[0], chats[1])


def _check_roles(answer: list[dict[str, Any]], wrong: list[Finding]) -> list[Finding]:
    others = sorted({each["role"] for each in answer} - set(ANSWER_ROLES))
    if others:
        message = f"an answer has only messages of the assistant and its tools, not of {others[0]!r}"
        return [Finding("unrecognized_role", message)]
    if not wrong and not any(each["role"] == "assistant" for each in answer):
        return [NO_ASSISTANT]
    return []

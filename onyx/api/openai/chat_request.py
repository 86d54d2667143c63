"""From a chat completion's body to a question; 400 with the parameter's name for what cannot be honoured."""

from pathlib import Path
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.openai.errors import no_model, wrong
from onyx.api.openai.model_catalogue import find_model, is_fine_tuned, may_be_base
from onyx.api.openai.schemas.chat import ChatBody
from onyx.jobs.ids import is_id
from onyx.jobs.job_directory import serves
from onyx.jobs.playground.manager import PlaygroundModel
from onyx.settings import Settings
from onyx.training.contract.chat_protocol import GenerateRequest
from onyx.training.contract.model_names import SMOLLM2, TINY, is_hub_name
from onyx.training.data.chat_messages import check_messages

_SAYS_NOTHING: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "store": (False,),
}
"""Parameters that are not honoured, and the values that ask for nothing."""


def question_of(body: ChatBody, settings: Settings) -> GenerateRequest:
    for name, harmless in _SAYS_NOTHING.items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            raise _unsupported(name, harmless)
    given = body.max_completion_tokens or body.max_tokens
    if given is not None and given > settings.try_tokens:
        name = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
        message = (
            f"an answer here has at most {settings.try_tokens} tokens (ONYX_TRY_TOKENS): a serving engine gives more"
        )
        raise wrong(message, name)
    return GenerateRequest(
        messages=_messages(body),
        max_tokens=given or settings.try_tokens,
        exact_tokens=given is not None,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=body.top_p or 1.0,
        seed=body.seed,
        stop=tuple(body.stop or ()),
    )


def _messages(body: ChatBody) -> list[dict[str, Any]]:
    """Checked as a line of training data is, but for what only a lesson needs."""
    messages, _, findings = check_messages(body.messages)
    for finding in findings:
        if finding.code != "example_missing_assistant_message":
            raise wrong(finding.message, "messages", code=finding.code)
    return messages


def _unsupported(name: str, harmless: tuple[Any, ...]) -> Exception:
    instead = f"leave it out, or give {harmless[0]!r}" if harmless else "leave it out"
    message = f"{name} is not offered here: {instead}. This endpoint only shows what a model has learned"
    return wrong(message, name, code="unsupported_parameter")


async def tried_model(name: str, context: AppContext, caller: Caller) -> PlaygroundModel:
    """`ft:…` names, jobs' ids (`<id>:epoch-2` for a snapshot) and base models; 404 for anything else."""
    if is_fine_tuned(name):
        found = await find_model(name, context, caller)
        if found is not None:
            return PlaygroundModel(found.spec_model, jobs=(found.job.id,))
    elif is_id(job_id := name.partition(":")[0]):
        job = await context.store.jobs.get(job_id, caller.sees)
        if job is not None and serves(job, name):
            return PlaygroundModel(name, jobs=(job.id,))
    elif may_be_base(name, context.settings) and _is_here(name, context.settings):
        return PlaygroundModel(name)
    raise no_model(name)


def _is_here(name: str, settings: Settings) -> bool:
    """Whether nothing needs fetching: a question must not begin a download of many gigabytes. A job may."""
    root = settings.model_root
    if name in (TINY, *SMOLLM2) or (root is not None and (root / name).is_dir()):
        return True
    return is_hub_name(name) and _cached(name, settings).is_dir()


def _cached(name: str, settings: Settings) -> Path:
    """Where the hub's client keeps what jobs have fetched."""
    return settings.home / "models" / "hub" / f"models--{name.replace('/', '--')}" / "snapshots"

"""Turns a chat completion's body into a request to a model; 400 names a parameter that is not supported."""

from pathlib import Path
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.openai.errors import invalid, model_not_found
from onyx.api.openai.model_catalogue import find_model, is_fine_tuned, may_be_base
from onyx.api.openai.schemas.chat import ChatBody
from onyx.jobs.ids import is_id
from onyx.jobs.job_directory import serves
from onyx.jobs.playground.manager import PlaygroundModel
from onyx.settings import Settings
from onyx.training.contract.chat_protocol import GenerateRequest
from onyx.training.contract.model_names import SMOLLM2, TINY, is_hub_name
from onyx.training.data.chat_messages import check_messages

_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
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
"""Parameters that are not supported, and the values that change nothing and are therefore accepted."""


def to_generate_request(body: ChatBody, settings: Settings) -> GenerateRequest:
    for name, neutral in _NEUTRAL_VALUES.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise _unsupported(name, neutral)
    limit = body.max_completion_tokens or body.max_tokens
    if limit is not None and limit > settings.try_tokens:
        name = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
        message = (
            f"an answer here has at most {settings.try_tokens} tokens (ONYX_TRY_TOKENS): "
            "use a serving engine for longer ones"
        )
        raise invalid(message, name)
    return GenerateRequest(
        messages=_messages(body),
        max_tokens=limit or settings.try_tokens,
        exact_tokens=limit is not None,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=body.top_p or 1.0,
        seed=body.seed,
        stop=tuple(body.stop or ()),
    )


def _messages(body: ChatBody) -> list[dict[str, Any]]:
    """Checked like a line of training data, except that it needs no assistant message."""
    messages, _, findings = check_messages(body.messages)
    for finding in findings:
        if finding.code != "example_missing_assistant_message":
            raise invalid(finding.message, "messages", code=finding.code)
    return messages


def _unsupported(name: str, neutral: tuple[Any, ...]) -> Exception:
    instead = f"leave it out, or send {neutral[0]!r}" if neutral else "leave it out"
    message = f"{name} is not supported: {instead}. This endpoint only shows what a model has learned"
    return invalid(message, name, code="unsupported_parameter")


async def playground_model(name: str, context: AppContext, caller: Caller) -> PlaygroundModel:
    """The model with this name: `ft:…`, a job's id (`<id>:epoch-2` for a snapshot) or a base model; 404 otherwise."""
    if is_fine_tuned(name):
        found = await find_model(name, context, caller)
        if found is not None:
            return PlaygroundModel(found.spec_model, jobs=(found.job.id,))
    elif is_id(job_id := name.partition(":")[0]):
        job = await context.store.jobs.get(job_id, caller.sees)
        if job is not None and serves(job, name):
            return PlaygroundModel(name, jobs=(job.id,))
    elif may_be_base(name, context.settings) and _is_local(name, context.settings):
        return PlaygroundModel(name)
    raise model_not_found(name)


def _is_local(name: str, settings: Settings) -> bool:
    """Whether the model needs no download. A job may download many gigabytes; a chat request must not."""
    root = settings.model_root
    if name in (TINY, *SMOLLM2) or (root is not None and (root / name).is_dir()):
        return True
    return is_hub_name(name) and _hub_cache(name, settings).is_dir()


def _hub_cache(name: str, settings: Settings) -> Path:
    """Where the hub's client stores the models that jobs have downloaded."""
    return settings.home / "models" / "hub" / f"models--{name.replace('/', '--')}" / "snapshots"

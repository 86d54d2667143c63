"""From OpenAI's way of asking for a job to a JobSpec, with every "auto" resolved."""

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.http.errors import ApiError
from onyx.api.http.scrubbing import scrub
from onyx.api.openai.errors import wrong
from onyx.api.openai.model_catalogue import find_model, is_fine_tuned, may_be_base
from onyx.api.openai.names import base_of
from onyx.api.openai.schemas.jobs import DpoHyperparameters, Hyperparameters, JobBody, OnyxOptions
from onyx.jobs.ids import is_id
from onyx.jobs.notify.url_policy import AddressError, addresses_of, parse
from onyx.jobs.spec_builder import job_spec
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec

EPOCHS = 3
FEWEST_SEEN, MOST_SEEN = 100, 25_000
"""Samples that a job should see in all: few samples are seen more often, many less."""

MOST_EPOCHS = 25
UPDATES_PER_EPOCH = 100
"""Wanted: the batch is the power of two nearest to a hundredth of the samples."""

SMALLEST_BATCH, LARGEST_BATCH = 4, 64
LEARNING_RATE, LORA_LEARNING_RATE = 5e-5, 2e-4
"""What a multiplier of 1 means, for all weights and for adapters."""

DPO_SHARE = 0.1
"""Preferences are learnt from at a tenth of it."""

SAMPLES_OF_A_TABLE = 1000
"""What a Parquet file is taken to have: nobody counts its rows before it is prepared."""

CHUNK = 1 << 20


def epochs_for(samples: int) -> int:
    if samples * EPOCHS < FEWEST_SEEN:
        return min(MOST_EPOCHS, math.ceil(FEWEST_SEEN / max(1, samples)))
    return max(1, min(EPOCHS, MOST_SEEN // samples))


def batch_for(samples: int) -> int:
    wanted = 1 << round(math.log2(max(1.0, samples / UPDATES_PER_EPOCH)))
    return max(1, min(samples, max(SMALLEST_BATCH, min(LARGEST_BATCH, wanted))))


def learning_rate_for(*, lora: bool, dpo: bool) -> float:
    """The rate that a multiplier multiplies."""
    return (LORA_LEARNING_RATE if lora else LEARNING_RATE) * (DPO_SHARE if dpo else 1.0)


async def samples_in(path: Path) -> int:
    """About how many samples a file has: its lines. What is wrong with them, preparing the job finds out."""
    return SAMPLES_OF_A_TABLE if path.suffix == ".parquet" else await asyncio.to_thread(_lines, path)


def _lines(path: Path) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return max(1, count + (last != b"\n"))


_OF_DATA = {"max_length", "overlong", "evaluation_fraction", "tolerated_bad_lines"}
_OF_JOB = {"window", "accumulation_steps", "devices", "auto_start", "webhook_url"}
_NONE_IS_NOT_GIVEN = {"lora_r", "lora_alpha", "lora_dropout", "max_memory_usage", "memory_safety_margin"}


@dataclass(frozen=True)
class NewJob:
    """A job to make, and whose."""

    spec: JobSpec
    owner: str


@dataclass(frozen=True)
class _Base:
    """The model to begin with."""

    name: str
    """As a spec names it."""

    root: str
    """The base that its fine-tunes are named after."""

    owner: str


async def asked_for(body: JobBody, context: AppContext, caller: Caller) -> NewJob:
    """What the body asks for; 400 with code and param for what it must not."""
    _check_limits(body, context.settings)
    training_file = await _file(body.training_file, context, caller, "training_file")
    validation = await _file(body.validation_file, context, caller, "validation_file") if body.validation_file else None
    base = await _base(body.model, context, caller)
    await _check_webhook(body.onyx.webhook_url, context.settings)
    numbers = _hyperparameters(body)
    samples = await samples_in(training_file)
    multiplier = numbers.learning_rate_multiplier or 1.0
    try:
        spec = job_spec(
            model=base.name,
            data=_data(body.onyx, context.settings)
            | {"path": str(training_file), "evaluation_path": str(validation) if validation else None},
            training=_training(body, numbers, min(context.settings.most_epochs, epochs_for(samples))),
            window=numbers.batch_size or body.onyx.window or batch_for(samples),
            accumulation_steps=body.onyx.accumulation_steps,
            devices=body.onyx.devices,
            labels=_labels(body, base, multiplier),
            auto_start=body.onyx.auto_start,
            webhook_url=body.onyx.webhook_url,
            wandb=body.integrations[0].wandb if body.integrations else None,
        )
    except ValueError as error:
        raise wrong(scrub(str(error), context.settings), "onyx") from None
    return NewJob(spec, base.owner)


def _hyperparameters(body: JobBody) -> DpoHyperparameters:
    """Those of the method, over the older ones beside it."""
    given: list[Hyperparameters | None] = [body.hyperparameters]
    if body.method is not None:
        if body.method.type == "reinforcement":
            message = "reinforcement fine-tuning is not offered here: use supervised or dpo"
            raise wrong(message, "method.type", code="unsupported_method")
        chosen = body.method.dpo if body.method.type == "dpo" else body.method.supervised
        given.append(chosen.hyperparameters if chosen else None)
    joined: dict[str, Any] = {}
    for each in given:
        joined |= each.model_dump(exclude_none=True) if each else {}
    return DpoHyperparameters.model_validate(joined)


def _data(onyx: OnyxOptions, settings: Settings) -> dict[str, Any]:
    return onyx.model_dump(include=_OF_DATA) | {"max_length": min(onyx.max_length, settings.most_max_length)}


def _training(body: JobBody, numbers: DpoHyperparameters, epochs: int) -> dict[str, Any]:
    """What goes into the spec's training, in the words of `job_spec`; `epochs` where nobody says how many."""
    training = options(body.onyx)
    dpo = body.method is not None and body.method.type == "dpo"
    if dpo:
        training |= {"objective": "dpo"} | ({"dpo_beta": numbers.beta} if numbers.beta else {})
    if body.seed is not None:
        training["seed"] = body.seed
    if numbers.n_epochs is not None or "epochs" not in training:
        training["epochs"] = numbers.n_epochs or epochs
    lora = training.get("method", "lora" if any(name.startswith("lora_") for name in training) else "full") == "lora"
    rate = training.get("learning_rate") or learning_rate_for(lora=lora, dpo=dpo)
    return training | {"learning_rate": rate * (numbers.learning_rate_multiplier or 1.0)}


def options(onyx: OnyxOptions) -> dict[str, Any]:
    """What the caller said of the training, and nothing that was filled in."""
    given = onyx.model_dump(exclude_unset=True, exclude=_OF_DATA | _OF_JOB)
    return {name: value for name, value in given.items() if value is not None or name not in _NONE_IS_NOT_GIVEN}


def _labels(body: JobBody, base: _Base, multiplier: float) -> dict[str, Any]:
    """What the job's answer shows again."""
    return {
        "model": body.model,
        "base": base.root,
        "training_file": body.training_file,
        "validation_file": body.validation_file,
        "suffix": body.suffix,
        "metadata": body.metadata,
        "learning_rate_multiplier": multiplier,
    }


async def _file(file_id: str, context: AppContext, caller: Caller, param: str) -> Path:
    stored = await context.store.uploads.get(file_id, caller.sees)
    path = stored.path(context.settings.home) if stored else None
    if stored is None or path is None or not path.is_file():
        raise wrong(f"there is no file {file_id[:80]!r}: upload it first", param, code="file_not_found")
    if stored.purpose != "fine-tune":
        raise wrong(f"{file_id} was made for {stored.purpose}: upload it for fine-tune", param, code="invalid_purpose")
    return path


async def _base(name: str, context: AppContext, caller: Caller) -> _Base:
    """The model to begin with, and whose the job is."""
    if is_fine_tuned(name):
        found = await find_model(name, context, caller)
        if found is None:
            raise _no_base(name)
        return _Base(found.spec_model, base_of(found.job), _owner(caller, found.job.owner))
    former = (
        await context.store.jobs.get(name.partition(":")[0], caller.sees) if is_id(name.partition(":")[0]) else None
    )
    if former is not None:
        return _Base(name, base_of(former), _owner(caller, former.owner))
    if not await asyncio.to_thread(may_be_base, name, context.settings):
        raise _no_base(name)
    return _Base(name, name, caller.name)


def _owner(caller: Caller, of_model: str) -> str:
    """A job may go on from models of its own owner. Where there are no keys, that is a label and nothing more."""
    if of_model != caller.name and not caller.anonymous:
        raise wrong(f"the model is {of_model}'s: only they can make a job of it", "model", code="not_yours")
    return of_model


def _no_base(name: str) -> ApiError:
    message = f"there is no model {name[:200]!r} here: GET /models lists those that there are, a hub's is owner/name"
    return wrong(message, "model", code="model_not_found")


def _check_limits(body: JobBody, settings: Settings) -> None:
    numbers, onyx = _hyperparameters(body), body.onyx
    for said, name, other in (
        (numbers.n_epochs, "epochs", "n_epochs"),
        (numbers.batch_size, "window", "batch_size"),
    ):
        if said is not None and name in onyx.model_fields_set:
            raise wrong(f"onyx.{name} and {other} say the same thing: give one of them", f"onyx.{name}")
    if body.seed is not None and "seed" in onyx.model_fields_set:
        raise wrong("onyx.seed and seed say the same thing: give one of them", "onyx.seed")
    if {"objective", "dpo_beta"} & onyx.model_fields_set:
        raise wrong("say it with method: its type and its hyperparameters", "onyx.objective")
    for epochs, param in ((numbers.n_epochs, "n_epochs"), (_said(onyx, "epochs"), "onyx.epochs")):
        if epochs is not None and epochs > settings.most_epochs:
            raise wrong(f"epochs may be at most {settings.most_epochs} here", param)
    if (_said(onyx, "max_length") or 0) > settings.most_max_length:
        raise wrong(f"max_length may be at most {settings.most_max_length} here", "onyx.max_length")


def _said(onyx: OnyxOptions, name: str) -> int | None:
    return getattr(onyx, name) if name in onyx.model_fields_set else None


async def _check_webhook(url: str | None, settings: Settings) -> None:
    if url is None:
        return
    if settings.webhook_secret is None:
        raise wrong("this service signs no webhooks: its operator has set no ONYX_WEBHOOK_SECRET", "onyx.webhook_url")
    private = settings.webhook_allow_private
    try:
        await asyncio.to_thread(addresses_of, parse(url, allow_private=private), allow_private=private)
    except AddressError as error:
        raise wrong(str(error), "onyx.webhook_url", code="webhook_refused") from None

"""Turns the body of OpenAI's "create job" into a JobSpec, with every "auto" resolved. docs/openai.md has the rules."""

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.http.errors import ApiError
from onyx.api.http.scrubbing import scrub
from onyx.api.openai.errors import invalid
from onyx.api.openai.model_catalogue import find_model, is_fine_tuned, may_be_base
from onyx.api.openai.names import base_of
from onyx.api.openai.schemas.jobs import DpoHyperparameters, Hyperparameters, JobBody, OnyxOptions
from onyx.jobs.ids import is_id
from onyx.jobs.notify.url_policy import AddressError, addresses_of, parse
from onyx.jobs.spec_builder import job_spec
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec

EPOCHS = 3
LEAST_SAMPLES_SEEN, MOST_SAMPLES_SEEN = 100, 25_000
"""How many samples a job should see over all epochs: it decides the number of epochs."""

MOST_EPOCHS = 25
UPDATES_PER_EPOCH = 100
"""The target that decides the batch size: the power of two nearest to a hundredth of the samples."""

SMALLEST_BATCH, LARGEST_BATCH = 4, 64
LEARNING_RATE, LORA_LEARNING_RATE = 5e-5, 2e-4
"""The rates at a multiplier of 1, for all weights and for adapters."""

DPO_FACTOR = 0.1
"""DPO learns at a tenth of these rates."""

PARQUET_SAMPLES = 1000
"""The assumed number of samples of a Parquet file. Its rows are only counted when the job is prepared."""

CHUNK = 1 << 20


def epochs_for(samples: int) -> int:
    if samples * EPOCHS < LEAST_SAMPLES_SEEN:
        return min(MOST_EPOCHS, math.ceil(LEAST_SAMPLES_SEEN / max(1, samples)))
    return max(1, min(EPOCHS, MOST_SAMPLES_SEEN // samples))


def batch_for(samples: int) -> int:
    wanted = 1 << round(math.log2(max(1.0, samples / UPDATES_PER_EPOCH)))
    return max(1, min(samples, max(SMALLEST_BATCH, min(LARGEST_BATCH, wanted))))


def learning_rate_for(*, lora: bool, dpo: bool) -> float:
    """The learning rate at a multiplier of 1."""
    return (LORA_LEARNING_RATE if lora else LEARNING_RATE) * (DPO_FACTOR if dpo else 1.0)


async def count_samples(path: Path) -> int:
    """The number of lines of the file, valid or not: preparing the job checks them."""
    return PARQUET_SAMPLES if path.suffix == ".parquet" else await asyncio.to_thread(_count_lines, path)


def _count_lines(path: Path) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return max(1, count + (last != b"\n"))


_DATA_OPTIONS = {"max_length", "overlong", "evaluation_fraction", "tolerated_bad_lines"}
_JOB_OPTIONS = {"window", "accumulation_steps", "devices", "auto_start", "webhook_url"}
_NULL_MEANS_DEFAULT = {"lora_r", "lora_alpha", "lora_dropout", "max_memory_usage", "memory_safety_margin"}


@dataclass(frozen=True)
class NewJob:
    """A job to create, and its owner."""

    spec: JobSpec
    owner: str


@dataclass(frozen=True)
class _StartModel:
    """The model that the job starts from."""

    name: str
    """Its name in a JobSpec."""

    base: str
    """The base model in the names of its fine-tunes."""

    owner: str
    """The owner of the new job."""


async def new_job(body: JobBody, context: AppContext, caller: Caller) -> NewJob:
    """The job that the body describes; 400 with code and param if it is invalid or not allowed here."""
    _check_limits(body, context.settings)
    training_file = await _file(body.training_file, context, caller, "training_file")
    validation = await _file(body.validation_file, context, caller, "validation_file") if body.validation_file else None
    model = await _start_model(body.model, context, caller)
    await _check_webhook(body.onyx.webhook_url, context.settings)
    numbers = _hyperparameters(body)
    samples = await count_samples(training_file)
    multiplier = numbers.learning_rate_multiplier or 1.0
    try:
        spec = job_spec(
            model=model.name,
            data=_data(body.onyx, context.settings)
            | {"path": str(training_file), "evaluation_path": str(validation) if validation else None},
            training=_training(body, numbers, min(context.settings.most_epochs, epochs_for(samples))),
            window=numbers.batch_size or body.onyx.window or batch_for(samples),
            accumulation_steps=body.onyx.accumulation_steps,
            devices=body.onyx.devices,
            labels=_labels(body, model, multiplier),
            auto_start=body.onyx.auto_start,
            webhook_url=body.onyx.webhook_url,
            wandb=body.integrations[0].wandb if body.integrations else None,
        )
    except ValueError as error:
        raise invalid(scrub(str(error), context.settings), "onyx") from None
    return NewJob(spec, model.owner)


def _hyperparameters(body: JobBody) -> DpoHyperparameters:
    """Those of `method` over those of the older field `hyperparameters`."""
    sources: list[Hyperparameters | None] = [body.hyperparameters]
    if body.method is not None:
        if body.method.type == "reinforcement":
            message = "reinforcement fine-tuning is not supported: use supervised or dpo"
            raise invalid(message, "method.type", code="unsupported_method")
        method = body.method.dpo if body.method.type == "dpo" else body.method.supervised
        sources.append(method.hyperparameters if method else None)
    merged: dict[str, Any] = {}
    for each in sources:
        merged |= each.model_dump(exclude_none=True) if each else {}
    return DpoHyperparameters.model_validate(merged)


def _data(onyx: OnyxOptions, settings: Settings) -> dict[str, Any]:
    return onyx.model_dump(include=_DATA_OPTIONS) | {"max_length": min(onyx.max_length, settings.most_max_length)}


def _training(body: JobBody, numbers: DpoHyperparameters, epochs: int) -> dict[str, Any]:
    """The `training` argument of `job_spec`. `epochs` is the number where the body gives none."""
    training = training_options(body.onyx)
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


def training_options(onyx: OnyxOptions) -> dict[str, Any]:
    """The training settings that the caller set, without defaults."""
    given = onyx.model_dump(exclude_unset=True, exclude=_DATA_OPTIONS | _JOB_OPTIONS)
    return {name: value for name, value in given.items() if value is not None or name not in _NULL_MEANS_DEFAULT}


def _labels(body: JobBody, model: _StartModel, multiplier: float) -> dict[str, Any]:
    """Fields of the body that the job's answer repeats."""
    return {
        "model": body.model,
        "base": model.base,
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
        raise invalid(f"there is no file {file_id[:80]!r}: upload it first", param, code="file_not_found")
    if stored.purpose != "fine-tune":
        raise invalid(
            f"{file_id} has the purpose {stored.purpose}: upload it as fine-tune", param, code="invalid_purpose"
        )
    return path


async def _start_model(name: str, context: AppContext, caller: Caller) -> _StartModel:
    """A fine-tuned model (`ft:…`), a job's model (its id) or a base model; 400 for anything else."""
    if is_fine_tuned(name):
        found = await find_model(name, context, caller)
        if found is None:
            raise _no_such_model(name)
        return _StartModel(found.spec_model, base_of(found.job), _owner(caller, found.job.owner))
    job_id = name.partition(":")[0]
    former = await context.store.jobs.get(job_id, caller.sees) if is_id(job_id) else None
    if former is not None:
        return _StartModel(name, base_of(former), _owner(caller, former.owner))
    if not await asyncio.to_thread(may_be_base, name, context.settings):
        raise _no_such_model(name)
    return _StartModel(name, name, caller.name)


def _owner(caller: Caller, model_owner: str) -> str:
    """The new job's owner: the model's. Only that owner may start from it, unless the service has no API keys."""
    if model_owner != caller.name and not caller.anonymous:
        raise invalid(f"the model belongs to {model_owner}: only they can train it", "model", code="not_yours")
    return model_owner


def _no_such_model(name: str) -> ApiError:
    message = f"there is no model {name[:200]!r} here: GET /models lists them; a model of the hub is owner/name"
    return invalid(message, "model", code="model_not_found")


def _check_limits(body: JobBody, settings: Settings) -> None:
    numbers, onyx = _hyperparameters(body), body.onyx
    for value, name, other in (
        (numbers.n_epochs, "epochs", "n_epochs"),
        (numbers.batch_size, "window", "batch_size"),
        (body.seed, "seed", "seed"),
    ):
        if value is not None and name in onyx.model_fields_set:
            raise invalid(f"onyx.{name} and {other} mean the same: send only one of them", f"onyx.{name}")
    if {"objective", "dpo_beta"} & onyx.model_fields_set:
        raise invalid("use method instead: its type and its hyperparameters", "onyx.objective")
    for epochs, param in ((numbers.n_epochs, "n_epochs"), (_if_set(onyx, "epochs"), "onyx.epochs")):
        if epochs is not None and epochs > settings.most_epochs:
            raise invalid(f"epochs may be at most {settings.most_epochs} here", param)
    if (_if_set(onyx, "max_length") or 0) > settings.most_max_length:
        raise invalid(f"max_length may be at most {settings.most_max_length} here", "onyx.max_length")


def _if_set(onyx: OnyxOptions, name: str) -> int | None:
    return getattr(onyx, name) if name in onyx.model_fields_set else None


async def _check_webhook(url: str | None, settings: Settings) -> None:
    if url is None:
        return
    if settings.webhook_secret is None:
        message = "this service sends no webhooks: its operator has not set ONYX_WEBHOOK_SECRET"
        raise invalid(message, "onyx.webhook_url")
    private = settings.webhook_allow_private
    try:
        await asyncio.to_thread(addresses_of, parse(url, allow_private=private), allow_private=private)
    except AddressError as error:
        raise invalid(str(error), "onyx.webhook_url", code="webhook_refused") from None

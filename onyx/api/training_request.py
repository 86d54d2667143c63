"""From a training body to a JobSpec: files found, quotas kept, a stored config joined in."""

from pathlib import Path
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.http.errors import bad, not_found
from onyx.api.http.scrubbing import scrub
from onyx.api.schemas.configs import ConfigBody
from onyx.api.schemas.training import DatasetConfig, TrainingBody
from onyx.jobs.spec_builder import job_spec
from onyx.training.contract.spec import JobSpec

_AS_IT_IS = ("texts", "rows", "hub", "hub_split", "max_length", "overlong", "evaluation_rows")
_FRACTIONS = ("evaluation_fraction", "tolerated_bad_lines")


async def spec_of(body: TrainingBody, context: AppContext, caller: Caller) -> JobSpec:
    """What the body asks for; 404 and 422 for what it must not."""
    config = await _config(body, context, caller)
    training = _training(body, config)
    limit = context.settings
    if training.get("epochs", 0) > limit.most_epochs:
        raise bad(f"epochs may be at most {limit.most_epochs} here", param="training_config.epochs")
    if body.dataset_config.max_length > limit.most_max_length:
        raise bad(f"max_length may be at most {limit.most_max_length} here", param="dataset_config.max_length")
    _check_rows(body.dataset_config, limit.most_rows)
    given = config.model_fields_set if config else set()
    steps = config.accumulation_steps if config and "accumulation_steps" in given else None
    window = config.target if config and config.target else None
    asked = body.target_effective_batch_size if "target_effective_batch_size" in body.model_fields_set else None
    try:
        return job_spec(
            model=body.model_name,
            data=await _data(body.dataset_config, context, caller),
            training=training,
            window=asked or window or body.target_effective_batch_size,
            accumulation_steps=body.accumulation_steps or steps,
            devices=body.world_size if body.distributed else 1,
            labels={"user_id": body.user_id},
        )
    except ValueError as error:
        raise bad(scrub(str(error), context.settings)) from None


def _check_rows(data: DatasetConfig, most: int) -> None:
    """What came inside of the body; files are counted when they are read."""
    for name in ("texts", "rows", "evaluation_rows"):
        if len(getattr(data, name) or ()) > most:
            raise bad(f"{name} may be at most {most:,} here", param=f"dataset_config.{name}")


async def _config(body: TrainingBody, context: AppContext, caller: Caller) -> ConfigBody | None:
    named = body.gradient_accumulation_config
    if not isinstance(named, str):
        return named
    stored = await context.store.configs.get(named, caller.sees)
    if stored is None:
        raise not_found("stored config", named)
    return ConfigBody.model_validate(stored.config)


def _training(body: TrainingBody, config: ConfigBody | None) -> dict[str, Any]:
    """What the training config says goes before what the accumulation config does."""
    joined: dict[str, Any] = {}
    if config is not None:
        joined = config.model_dump(include={"gradient_clipping", "max_memory_usage", "memory_safety_margin"})
        joined["precision"] = "auto" if config.mixed_precision else "float32"
        joined["accumulation_warmup"] = config.warmup_steps
        joined["accumulation_scheduler"] = config.accumulation_scheduler
    return joined | body.training_config.given()


async def _data(config: DatasetConfig, context: AppContext, caller: Caller) -> dict[str, Any]:
    fields = {name: getattr(config, name) for name in (*_AS_IT_IS, *_FRACTIONS)}
    path = await _file(config.file_id, config.path, context, caller, "dataset_config")
    evaluation = await _file(
        config.evaluation_file_id, config.evaluation_path, context, caller, "dataset_config.evaluation"
    )
    return fields | {"path": path, "evaluation_path": evaluation}


async def _file(file_id: str | None, path: str | None, context: AppContext, caller: Caller, where: str) -> str | None:
    if file_id is not None:
        stored = await context.store.uploads.get(file_id, caller.sees)
        if stored is None:
            raise not_found("file", file_id)
        return str(stored.path(context.settings.home))
    return str(_inside(context.settings.data_root, path, f"{where}.path")) if path is not None else None


def _inside(root: Path | None, path: str, param: str) -> Path:
    """The file that a caller named, if it is one of the operator's data files."""
    if root is None:
        raise bad("this service has no data root: send the samples themselves, or upload a file", param=param)
    try:
        found = (root / path).resolve(strict=True)
        ours = found.is_relative_to(root.resolve()) and found.is_file()
    except (OSError, ValueError, RuntimeError):  # not there, a NUL byte, a loop of links
        ours = False
    if not ours:
        raise bad(f"there is no file {path[:200]!r} in the data root: name one by its path inside of it", param=param)
    return found

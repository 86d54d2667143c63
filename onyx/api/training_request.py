"""From the body of a training request to the JobSpec that the store keeps.

Checks what only the service can know: its limits, the caller's uploaded files and stored configs, the data root.
"""

from pathlib import Path
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.http.errors import invalid, not_found
from onyx.api.http.scrubbing import scrub
from onyx.api.schemas.configs import ConfigBody
from onyx.api.schemas.training import DatasetConfig, TrainingBody
from onyx.jobs.spec_builder import job_spec
from onyx.settings import Settings
from onyx.training.contract.spec import JobSpec

_COPIED_FIELDS = (
    "texts", "rows", "hub", "hub_split", "max_length", "overlong", "evaluation_rows", "evaluation_fraction",
    "tolerated_bad_lines",
)  # fmt: skip
"""Fields of DatasetConfig that the spec has under the same name."""


async def spec_of(body: TrainingBody, context: AppContext, caller: Caller) -> JobSpec:
    """The spec of the job. 404 for a file or config that the caller does not have, 422 for what is not allowed."""
    config = await _stored_config(body, context, caller)
    training = _training_fields(body, config)
    _check_limits(body, training, context.settings)
    data = await _data_fields(body.dataset_config, context, caller)
    try:
        return job_spec(
            model=body.model_name,
            data=data,
            training=training,
            window=_window(body, config),
            accumulation_steps=body.accumulation_steps or _config_steps(config),
            devices=body.world_size if body.distributed else 1,
            labels={"user_id": body.user_id},
        )
    except ValueError as error:
        raise invalid(scrub(str(error), context.settings)) from None


async def _stored_config(body: TrainingBody, context: AppContext, caller: Caller) -> ConfigBody | None:
    """The accumulation config: in the body itself, or a stored one that the body names by its id."""
    given = body.gradient_accumulation_config
    if not isinstance(given, str):
        return given
    stored = await context.store.configs.get(given, caller.sees)
    if stored is None:
        raise not_found("stored config", given)
    return ConfigBody.model_validate(stored.config)


def _training_fields(body: TrainingBody, config: ConfigBody | None) -> dict[str, Any]:
    """Both configs joined. Where both say something, the training config wins."""
    fields: dict[str, Any] = {}
    if config is not None:
        fields = config.model_dump(include={"gradient_clipping", "max_memory_usage", "memory_safety_margin"})
        fields["precision"] = "auto" if config.mixed_precision else "float32"
        fields["accumulation_warmup"] = config.warmup_steps
        fields["accumulation_scheduler"] = config.accumulation_scheduler
    return fields | body.training_config.given()


def _check_limits(body: TrainingBody, training: dict[str, Any], settings: Settings) -> None:
    """The operator's limits on one job. Rows in files are counted later, when the file is read."""
    data = body.dataset_config
    if training.get("epochs", 0) > settings.most_epochs:
        raise invalid(f"epochs may be at most {settings.most_epochs} here", param="training_config.epochs")
    if data.max_length > settings.most_max_length:
        raise invalid(f"max_length may be at most {settings.most_max_length} here", param="dataset_config.max_length")
    for name in ("texts", "rows", "evaluation_rows"):
        if len(getattr(data, name) or ()) > settings.most_rows:
            raise invalid(f"{name} may be at most {settings.most_rows:,} here", param=f"dataset_config.{name}")


def _window(body: TrainingBody, config: ConfigBody | None) -> int:
    """Samples per update: what the body says, else what the config says, else the body's default."""
    if "target_effective_batch_size" not in body.model_fields_set and config is not None and config.target:
        return config.target
    return body.target_effective_batch_size


def _config_steps(config: ConfigBody | None) -> int | None:
    """The config's N if the client set it: its default must not override the planner."""
    given = config is not None and "accumulation_steps" in config.model_fields_set
    return config.accumulation_steps if config is not None and given else None


async def _data_fields(config: DatasetConfig, context: AppContext, caller: Caller) -> dict[str, Any]:
    fields = {name: getattr(config, name) for name in _COPIED_FIELDS}
    fields["path"] = await _file_path(config.file_id, config.path, context, caller, "dataset_config.path")
    fields["evaluation_path"] = await _file_path(
        config.evaluation_file_id, config.evaluation_path, context, caller, "dataset_config.evaluation.path"
    )
    return fields


async def _file_path(
    file_id: str | None, path: str | None, context: AppContext, caller: Caller, param: str
) -> str | None:
    """The path of an uploaded file, or of a file below the data root."""
    if file_id is not None:
        stored = await context.store.uploads.get(file_id, caller.sees)
        if stored is None:
            raise not_found("file", file_id)
        return str(stored.path(context.settings.home))
    return str(_in_data_root(context.settings.data_root, path, param)) if path is not None else None


def _in_data_root(root: Path | None, path: str, param: str) -> Path:
    """The file at `path`. 422 unless it is a regular file below the operator's data root, links resolved."""
    if root is None:
        raise invalid("this service has no data root: send the samples themselves, or upload a file", param=param)
    try:
        found = (root / path).resolve(strict=True)
        allowed = found.is_relative_to(root.resolve()) and found.is_file()
    except (OSError, ValueError, RuntimeError):  # no such file, a NUL byte, a loop of links
        allowed = False
    if not allowed:
        raise invalid(
            f"there is no file {path[:200]!r} in the data root: name one by its path inside of it", param=param
        )
    return found

"""From the documented way of asking to a JobSpec: unknown words are refused, and everything has its place."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from onyx.training.spec import DataSpec, JobSpec, LoraSpec, TrainingSpec

_LORA = {f"lora_{name}": name for name in LoraSpec.model_fields}
_DATA = ("max_length", "overlong", "evaluation_fraction", "tolerated_bad_lines")
_JOB = ("max_memory_usage", "memory_safety_margin", "gpu_ids")


def job_spec(
    *,
    model: str,
    data: Mapping[str, Any],
    training: Mapping[str, Any],
    window: int,
    accumulation_steps: int | None = None,
    devices: int = 1,
    labels: Mapping[str, Any] | None = None,
    **more: Any,
) -> JobSpec:
    """A job as it was asked for; ValueError with what to change.

    `training` takes the fields of TrainingSpec, `lora_r` and so on for an adapter, and those of data and job that
    people look for there (max_length, max_memory_usage …).
    """
    rest = dict(training)
    lora = {field: rest.pop(name) for name, field in _LORA.items() if name in rest}
    if lora:
        rest.setdefault("method", "lora")
    data = dict(data) | {name: rest.pop(name) for name in _DATA if name in rest}
    more |= {name: rest.pop(name) for name in _JOB if name in rest}
    if lora:
        rest["lora"] = lora
    try:
        return JobSpec(
            model=model,
            data=DataSpec.model_validate(data),
            training=TrainingSpec.model_validate(rest),
            window=window,
            accumulation_steps=accumulation_steps,
            devices=devices,
            labels=dict(labels or {}),
            **more,
        )
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """What is wrong, field by field, in one sentence each."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'the request'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )

"""Turns a job into OpenAI's job object. Jobs made through the other API are shown as far as its fields allow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from onyx.api.app_context import AppContext
from onyx.api.http.scrubbing import scrub_error
from onyx.api.openai.job_request import learning_rate_for
from onyx.api.openai.names import model_name
from onyx.api.openai.schemas.jobs import (
    DpoNumbers,
    Integration,
    JobError,
    JobObject,
    MethodAnswer,
    MethodOf,
    Numbers,
)
from onyx.jobs.ids import is_id, result_file_id
from onyx.jobs.models import Job
from onyx.jobs.presenters import plan_of
from onyx.jobs.status import JobStatus
from onyx.training.contract.attempt import Failure
from onyx.training.contract.spec import DataSpec

Status = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]

_PARAMS = {
    "model": "model",
    "data": "training_file",
    "data.path": "training_file",
    "data.evaluation": "validation_file",
    "data.evaluation_path": "validation_file",
    "world_size": "onyx.devices",
}
"""The field of this API for each setting that a failure may name. Other settings are in `onyx`, by their own names."""


async def present_jobs(jobs: Sequence[Job], context: AppContext) -> list[JobObject]:
    """Job objects for all jobs, with a single query for their result files."""
    ids = [result_file_id(job.id) for job in jobs if job.status is JobStatus.SUCCEEDED]
    existing = await context.store.uploads.existing(ids) if ids else frozenset()
    return [job_object(scrub_error(job, context.settings), existing) for job in jobs]


async def present_job(job: Job, context: AppContext) -> JobObject:
    return (await present_jobs([job], context))[0]


def job_object(job: Job, files: frozenset[str]) -> JobObject:
    """`files` are the ids of the result files that exist."""
    labels, result = job.spec.labels, result_file_id(job.id)
    succeeded = job.status is JobStatus.SUCCEEDED
    return JobObject(
        id=job.id,
        created_at=int(job.created_at),
        error=_error(job.error) if job.error else None,
        fine_tuned_model=model_name(job) if succeeded else None,
        finished_at=int(job.finished_at) if job.finished_at else None,
        hyperparameters=_numbers(job),
        model=str(labels.get("model") or job.spec.model),
        organization_id=job.owner,
        result_files=[result] if result in files else [],
        seed=job.spec.training.seed,
        status=_status(job.status),
        trained_tokens=job.result.trained_tokens if job.result else None,
        training_file=str(labels.get("training_file") or _source(job.spec.data)),
        validation_file=labels.get("validation_file") or _file_id(job.spec.data.evaluation_path),
        estimated_finish=_estimated_finish(job),
        integrations=[Integration(type="wandb", wandb=job.spec.wandb)] if job.spec.wandb else [],
        metadata=labels.get("metadata"),
        method=_method(job),
    )


def _status(status: JobStatus) -> Status:
    return "validating_files" if status is JobStatus.VALIDATING else cast(Status, str(status))


def _estimated_finish(job: Job) -> int | None:
    """The time that the running job is expected to end; None before it has reported a speed."""
    if job.status is not JobStatus.RUNNING or job.progress is None or job.progress_at is None:
        return None
    seconds_left = job.progress.seconds_left
    return int(job.progress_at + seconds_left) if seconds_left is not None else None


def _error(failure: Failure) -> JobError:
    return JobError(code=failure.code, message=failure.message, param=_param(failure.param))


def _param(param: str | None) -> str | None:
    if param is None or param in _PARAMS:
        return _PARAMS.get(param or "")
    return f"onyx.{param.removeprefix('training.').removeprefix('data.')}"


def _method(job: Job) -> MethodAnswer:
    training, numbers = job.spec.training, _numbers(job)
    if training.objective == "dpo":
        return MethodAnswer(type="dpo", dpo=MethodOf(hyperparameters=_with_beta(numbers, training.dpo_beta)))
    return MethodAnswer(type="supervised", supervised=MethodOf(hyperparameters=numbers))


def _with_beta(numbers: Numbers, beta: float) -> DpoNumbers:
    return DpoNumbers(**numbers.model_dump(), beta=beta)


def _numbers(job: Job) -> Numbers:
    training, plan = job.spec.training, plan_of(job)
    base = learning_rate_for(lora=training.method == "lora", dpo=training.objective == "dpo")
    multiplier = job.spec.labels.get("learning_rate_multiplier") or training.learning_rate / base
    return Numbers(
        n_epochs=training.epochs,
        batch_size=plan["window"] if plan else job.spec.window,
        learning_rate_multiplier=multiplier,
    )


def _source(data: DataSpec) -> str:
    """The uploaded file of the job, or a word for where its data came from."""
    return _file_id(data.path) or (f"hub:{data.hub}" if data.hub else "inline" if data.path is None else "server")


def _file_id(path: Any) -> str | None:
    """The id of the uploaded file at the path; None for the operator's files, whose paths are not shown to callers."""
    stem = Path(path).stem if path else ""
    return stem if is_id(stem) else None

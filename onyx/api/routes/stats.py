"""Health, statistics of jobs, and the state of devices."""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from onyx.api.app_context import AppContext
from onyx.api.deps import CallerDep, ContextDep, TrainingId
from onyx.api.http.caller import Caller
from onyx.api.http.errors import not_found
from onyx.api.onyx_route import OnyxRoute
from onyx.api.planning import plan_batch
from onyx.api.schemas.common import MOST, ModelName, problems
from onyx.api.schemas.stats import (
    Health,
    OptimalSettings,
    Performance,
    PerformanceAdvice,
    Recommendations,
    Session,
    Sessions,
    Stats,
)
from onyx.jobs.models import Job
from onyx.jobs.presenters import accumulation_stats, batch_numbers, plan_of
from onyx.jobs.status import JobStatus
from onyx.memory.devices.gpus import gpu_info

router = APIRouter(route_class=OnyxRoute, tags=["statistics"])

MOST_RUNNING = 100
"""How many running jobs an answer lists."""

HISTORY = 100
"""How many updates a job's statistics show, the last ones."""

MOST_SESSIONS = 20

_RULES_OF_THUMB = {
    "small": Recommendations(recommended_accumulation_steps=2, max_batch_size_per_gpu=8, memory_efficiency="high"),
    "medium": Recommendations(recommended_accumulation_steps=4, max_batch_size_per_gpu=4, memory_efficiency="medium"),
    "large": Recommendations(recommended_accumulation_steps=8, max_batch_size_per_gpu=2, memory_efficiency="low"),
    "xlarge": Recommendations(
        recommended_accumulation_steps=16, max_batch_size_per_gpu=1, memory_efficiency="very_low"
    ),
}


@router.get("/health")
async def health(context: ContextDep) -> Health:
    """Whether the service answers, and what it runs on."""
    gpus = await context.gpus()
    return Health(
        status="healthy",
        timestamp=time.time(),
        pytorch_available=find_spec("torch") is not None,
        gpu_count=len(gpus),
        available_gpus=[gpu.index for gpu in gpus],
        gpu_info=gpu_info(gpus),
    )


@router.get("/stats/{training_id}", responses=problems(404, 422))
async def get_stats(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> Stats:
    """The numbers of one training. They are cached for up to two seconds, because clients poll them."""
    found = await context.stats.get(training_id, lambda: _read_stats(context, training_id))
    if found is None or caller.sees not in (None, found[0]):
        raise not_found("training", training_id)
    return found[1]


@router.get("/stats")
async def list_stats(context: ContextDep, caller: CallerDep) -> Sessions:
    """The caller's trainings in short, newest first."""
    page = await context.store.jobs.list(owner=caller.sees, limit=MOST_SESSIONS)
    total = await context.store.jobs.count(caller.sees)
    return Sessions(total_sessions=total, accumulation_stats=[_session(job) for job in page.jobs])


@router.get("/performance/metrics")
async def performance_metrics(context: ContextDep, caller: CallerDep) -> Performance:
    """Readings of the GPUs' driver, and how full the micro-batches of running jobs are."""
    gpus = gpu_info(await context.gpus())
    return Performance(
        timestamp=time.time(),
        gpu_count=len(gpus),
        available_gpus=len(gpus),
        gpu_utilization={name: _number(gpu["gpu_utilization"]) for name, gpu in gpus.items()},
        memory_utilization={name: _number(gpu["memory_utilization"]) for name, gpu in gpus.items()},
        accumulation_efficiency=await efficiency(context, await running_jobs(context, caller)),
    )


@router.get("/performance/recommendations", responses=problems(400, 422))
async def performance_recommendations(
    context: ContextDep,
    caller: CallerDep,
    model_size: Literal["small", "medium", "large", "xlarge"] = "medium",
    target_batch_size: Annotated[int, Query(ge=1, le=MOST)] = 32,
    model_name: Annotated[ModelName | None, Query()] = None,
) -> PerformanceAdvice:
    """A rule of thumb by model size; with `model_name`, the planner's measured answer."""
    advice = _RULES_OF_THUMB[model_size]
    if model_name is not None:
        advice = await _planned(context, caller, model_name, target_batch_size)
    batch = advice.max_batch_size_per_gpu
    steps = -(-target_batch_size // batch)
    return PerformanceAdvice(
        model_size=model_size,
        target_batch_size=target_batch_size,
        recommendations=advice,
        optimal_settings=OptimalSettings(
            batch_size_per_gpu=batch,
            accumulation_steps=steps,
            effective_batch_size=batch * steps,
            learning_rate_scale=1 / steps,
        ),
    )


async def running_jobs(context: AppContext, caller: Caller) -> Sequence[Job]:
    """The caller's running jobs."""
    page = await context.store.jobs.list(owner=caller.sees, statuses=(JobStatus.RUNNING,), limit=MOST_RUNNING)
    return page.jobs


async def efficiency(context: AppContext, jobs: Sequence[Job]) -> dict[str, float]:
    """Per job, the share of its micro-batches' token budgets that real tokens fill."""
    ratios = {job.id: await _fill_ratio(context, job) for job in jobs}
    return {job_id: ratio for job_id, ratio in ratios.items() if ratio is not None}


async def _fill_ratio(context: AppContext, job: Job) -> float | None:
    plan = plan_of(job)
    metrics = await context.store.events.last_metrics(job.id, 1)
    if plan is None or not metrics or not metrics[0].data.get("micro_batches"):
        return None
    data = metrics[0].data
    budget = sum(each["token_budget"] for each in plan["devices"]) / len(plan["devices"])
    ratio: float = data["trained_tokens"] / data["update"] / (data["micro_batches"] * budget)
    return min(1.0, ratio)


async def _read_stats(context: AppContext, training_id: str) -> tuple[str, Stats] | None:
    """The job's owner, who may read the statistics, and the statistics; None if there is no such job."""
    job = await context.store.jobs.get(training_id)
    if job is None:
        return None
    numbers = accumulation_stats(job, await context.store.events.last_metrics(job.id, HISTORY))
    shown = {name: numbers[name] for name in Stats.model_fields if name != "training_id"}
    return job.owner, Stats(training_id=job.id, **shown)


async def _planned(context: AppContext, caller: Caller, model: str, target: int) -> Recommendations:
    answer = await plan_batch(context, caller, model, target, None)
    used = max(each["expected_peak"] / each["usable"] for each in answer["plan"]["devices"])
    levels = ((0.25, "high"), (0.5, "medium"), (0.8, "low"))
    return Recommendations(
        recommended_accumulation_steps=answer["accumulation_steps"],
        max_batch_size_per_gpu=answer["actual_batch_size_per_gpu"],
        memory_efficiency=next((level for limit, level in levels if used <= limit), "very_low"),
    )


def _session(job: Job) -> Session:
    numbers = batch_numbers(job)
    stats = accumulation_stats(job, ())
    return Session(
        training_id=job.id,
        model_name=job.spec.model,
        accumulation_steps=numbers["accumulation_steps"],
        effective_batch_size=numbers["effective_batch_size"],
        total_loss=stats["total_loss"],
        avg_gradient_norm=stats["avg_gradient_norm"],
        avg_memory_usage_gb=stats["avg_memory_usage_gb"],
        timestamp=job.created_at,
    )


def _number(value: int | float | str | None) -> float | None:
    return float(value) if isinstance(value, int | float) else None

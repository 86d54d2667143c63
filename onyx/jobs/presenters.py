"""The documented answers about a training, the same from the service and over HTTP."""

from collections.abc import Sequence
from typing import Any

from onyx.accumulation.rates import adjust_learning_rate
from onyx.jobs.models import Job
from onyx.jobs.records import Metric
from onyx.jobs.status import JobStatus
from onyx.memory.devices.device import Device
from onyx.memory.devices.gpus import gpu_info
from onyx.settings import Settings


def training_answer(
    job: Job, metrics: Sequence[Metric], devices: Sequence[Device], settings: Settings
) -> dict[str, Any]:
    """The training answer. What is not known yet is null."""
    result = job.result
    numbers = batch_numbers(job)
    stats = accumulation_stats(job, metrics)
    mixed = _precision(job) not in (None, "float32")
    return {
        "success": job.status is JobStatus.SUCCEEDED if job.status.terminal else None,
        "training_id": job.id,
        "status": str(job.status),
        "model_path": str(settings.job_dir(job.id) / "model") if job.status is JobStatus.SUCCEEDED else None,
        "training_time": result.seconds if result else None,
        "best_loss": result.best_loss if result else None,
        "epochs": job.spec.training.epochs,
        **numbers,
        "accumulation_stats": stats,
        "gpu_stats": gpu_info(devices),
        "training_history": history(job, stats, mixed, numbers["effective_batch_size"]),
        "mp_stats": {},
        "mixed_precision_enabled": mixed,
        "memory_savings_gb": 0.0,
        "scaler_scale": 1.0,
        "plan": plan_of(job),
        "progress": job.progress.model_dump() if job.progress else None,
        "error": job.error.message if job.error else None,
    }


def batch_numbers(job: Job) -> dict[str, Any]:
    """Effective batch, micro-batch, N and learning rate: planned ones before the job has run, then the real ones."""
    plan, result = plan_of(job), job.result
    steps = result.accumulation_steps if result else plan["accumulation_steps"] if plan else None
    training = job.spec.training
    return {
        "effective_batch_size": result.effective_batch if result else plan["window"] if plan else None,
        "actual_batch_size_per_gpu": max(each["micro_batch"] for each in plan["devices"]) if plan else None,
        "accumulation_steps": steps,
        "adjusted_learning_rate": adjust_learning_rate(training.learning_rate, steps, rule=training.learning_rate_rule)
        if steps
        else None,
    }


def accumulation_stats(job: Job, metrics: Sequence[Metric]) -> dict[str, Any]:
    """The documented statistics, from the updates that the store has."""
    norms = [metric.data["gradient_norm"] for metric in metrics if metric.data.get("gradient_norm") is not None]
    times = [metric.data["seconds"] for metric in metrics if metric.data.get("seconds") is not None]
    progress = job.progress
    memory = _memory(job, metrics)
    return {
        "accumulation_steps": batch_numbers(job)["accumulation_steps"],
        "current_step": progress.update if progress else 0,
        "total_loss": progress.loss if progress else None,
        "total_samples": progress.samples if progress else 0,
        "avg_gradient_norm": (progress.mean_gradient_norm if progress else None) or _mean(norms),
        "avg_memory_usage_gb": _mean(memory),
        "avg_accumulation_time": _mean(times),
        "gradient_norms": norms,
        "memory_usage": memory,
        "memory": job.result.memory if job.result else [],
        "accumulation_times": times,
    }


def _memory(job: Job, metrics: Sequence[Metric]) -> list[float]:
    """Peak GB of the ranks: per update, else from the result, else from the last report."""
    sizes = [metric.data["peak_bytes"] for metric in metrics if metric.data.get("peak_bytes") is not None]
    if not sizes and job.result:
        sizes = job.result.peak_bytes
    if not sizes and job.progress and job.progress.memory_bytes is not None:
        sizes = [job.progress.memory_bytes]
    return [size / 1e9 for size in sizes]


def history(job: Job, stats: dict[str, Any], mixed: bool, effective: int | None) -> list[dict[str, Any]]:
    """One entry per epoch, with validation metrics if there are any."""
    return [
        {
            **entry,
            "effective_batch_size": effective,
            "mixed_precision_enabled": mixed,
            "accumulation_stats": {
                "current_step": entry.get("update"),
                "accumulation_steps": stats["accumulation_steps"],
            },
            "mp_stats": {},
        }
        for entry in (job.result.epochs if job.result else [])
    ]


def plan_of(job: Job) -> dict[str, Any] | None:
    """The plan as JSON; None before there is one."""
    planned = (job.prepared or {}).get("planned")
    return planned["plan"] if planned else None


def _precision(job: Job) -> str | None:
    planned = (job.prepared or {}).get("planned")
    return planned["precision"] if planned else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

"""A job's state as text for the terminal, from the API's answer. Fields that are still empty are left out."""

from collections.abc import Iterator
from typing import Any

from onyx.cli.output import duration, gigabytes, number

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})

"""The statuses in which a job has ended."""

BARS = "▁▂▃▄▅▆▇█"


def percent(job: dict[str, Any]) -> float | None:
    """The job's progress from 0 to 100; None before the first report."""
    progress = job.get("progress") or {}
    if job["status"] == "succeeded":
        return 100.0
    if progress.get("percent") is not None:
        return float(progress["percent"])
    if progress.get("total_updates"):
        return min(100.0, 100.0 * float(progress["update"]) / float(progress["total_updates"]))
    return None


def summary_rows(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The rows of `onyx jobs show`: name and value."""
    yield "job", job["training_id"]
    yield "status", job["status"]
    plan = job["plan"]
    if plan:
        yield "model", f"{plan['model']} ({plan['method']}, {plan['precision']})"
        yield "window", f"{job['effective_batch_size']} samples in {job['accumulation_steps']} micro-batches"
        yield "devices", ", ".join(f"{each['label']} × {each['micro_batch']}" for each in plan["devices"])
    if job["progress"]:
        yield "progress", progress_line(job)
    if job["best_loss"] is not None:
        yield "best loss", number(job["best_loss"])
    if job["training_time"] is not None:
        yield "took", duration(job["training_time"])
    if job["error"]:
        yield "error", job["error"]


def progress_line(job: dict[str, Any]) -> str:
    """One line: percent, update, loss, tokens/s, memory against plan, time left."""
    return "  ".join(_progress_parts(job))


def _progress_parts(job: dict[str, Any]) -> Iterator[str]:
    progress = job.get("progress") or {}
    done = percent(job)
    if done is not None:
        yield f"{done:.0f} %"
    if progress.get("update") is not None:
        total = progress.get("total_updates")
        yield f"update {progress['update']}" + (f"/{total}" if total else "")
    if progress.get("loss") is not None:
        yield f"loss {number(progress['loss'])}"
    if progress.get("tokens_per_second") is not None:
        yield f"{progress['tokens_per_second']:.0f} tokens/s"
    if progress.get("memory_bytes") is not None:
        planned = progress.get("planned_bytes")
        yield gigabytes(progress["memory_bytes"]) + (f" of {gigabytes(planned)} planned" if planned else "")
    if progress.get("seconds_left") is not None and job["status"] not in TERMINAL:
        yield f"{duration(progress['seconds_left'])} left"


def sparkline(values: list[float], width: int = 24) -> str:
    """The last `width` values as a row of bars."""
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)

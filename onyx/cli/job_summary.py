"""How a job stands, in words: what its training answer has, and nothing where it has nothing."""

from collections.abc import Iterator
from typing import Any

from onyx.cli.output import duration, gigabytes, number

OVER = frozenset({"succeeded", "failed", "cancelled"})

BARS = "▁▂▃▄▅▆▇█"


def percent(job: dict[str, Any]) -> float | None:
    """How far it is, from 0 to 100."""
    progress = job.get("progress") or {}
    if job["status"] == "succeeded":
        return 100.0
    if progress.get("percent") is not None:
        return float(progress["percent"])
    if progress.get("total_updates"):
        return min(100.0, 100.0 * float(progress["update"]) / float(progress["total_updates"]))
    return None


def standing(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and value of what is worth saying."""
    yield "job", job["training_id"]
    yield "status", job["status"]
    plan = job["plan"]
    if plan:
        yield "model", f"{plan['model']} ({plan['method']}, {plan['precision']})"
        yield "window", f"{job['effective_batch_size']} samples in {job['accumulation_steps']} micro-batches"
        yield "devices", ", ".join(f"{each['label']} × {each['micro_batch']}" for each in plan["devices"])
    if job["progress"]:
        yield "progress", figures(job)
    if job["best_loss"] is not None:
        yield "best loss", number(job["best_loss"])
    if job["training_time"] is not None:
        yield "took", duration(job["training_time"])
    if job["error"]:
        yield "error", job["error"]


def figures(job: dict[str, Any]) -> str:
    """One line: how far, how well, how fast, how long, how full."""
    return "  ".join(_figures(job))


def _figures(job: dict[str, Any]) -> Iterator[str]:
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
    if progress.get("seconds_left") is not None and job["status"] not in OVER:
        yield f"{duration(progress['seconds_left'])} left"


def sparkline(values: list[float], width: int = 24) -> str:
    """The last values as a row of bars."""
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in shown)

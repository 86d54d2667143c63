"""What a rank measures of time and memory: reported once beside the plan's prediction, and stored for later plans.

Nothing in the run depends on it: the same plan gives the same bits.
"""

import math
from dataclasses import replace
from typing import Any

import torch

from onyx.memory.footprint.overhead import Overhead
from onyx.memory.footprint.stored import store_overhead
from onyx.memory.planning.timing import Timing, device_timing_key, store_timing, stored_timing
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Attempt
from onyx.training.rank.out_of_memory import peak_bytes
from onyx.training.rank.run import Run

Seconds = dict[int, float]
"""Of micro-batches, by padded tokens."""


def report(run: Run, seconds: Seconds) -> None:
    """Emit one event with the time and memory that this rank measured in its warm-up."""
    part, device = _planned_device(run), run.step.device
    if device.type != "cpu" and "name" in part:
        store_overhead(part["name"], card_overhead(device))
    timing = _timing(part, seconds)
    per_update = update_seconds(run, timing) if timing else None
    windows = math.ceil(run.order.count / run.progress.steering.window) * run.attempt.spec.training.epochs
    predicted = predicted_bytes(run.attempt)
    measured = peak_bytes(device)
    data = {
        "seconds_per_update": per_update,
        "seconds_total": per_update * windows if per_update is not None else None,
        "predicted_bytes": predicted[run.ranks.rank] if predicted else None,
        "measured_bytes": measured,
    }
    run.recorder.events.emit(event_kinds.PROBE, f"the largest micro-batch took {measured / 2**20:,.1f} MB", data)


def store_update_seconds(run: Run) -> None:
    """At the end: store how long an update takes beyond its micro-batches."""
    key, windows = _planned_device(run).get("timing_key"), run.progress.windows
    if key is None or not windows:
        return
    timing = stored_timing(key)
    if timing is None:
        return
    without = replace(timing, per_update=0.0)
    beyond = run.progress.seconds / windows - update_seconds(run, without)
    store_timing(key, replace(timing, per_update=max(0.0, beyond)))


def store_throughput(run: Run) -> None:
    """At the end, on every rank: store how fast its own device is, for the shares of later plans."""
    key, seconds_per_token = _planned_device(run).get("timing_key"), run.throughput.seconds_per_token
    if key is not None and seconds_per_token is not None:
        mine = Timing(per_micro_batch=0.0, per_token=seconds_per_token, per_update=0.0)
        store_timing(device_timing_key(key, run.share.device, run.share.uuid), mine)


def predicted_bytes(attempt: Attempt) -> list[int]:
    """The plan's prediction for each rank, comparable with `peak_bytes`."""
    name = "low" if attempt.shares[0].device.startswith("cuda") else "expected_peak"
    return [part[name] for part in attempt.plan.get("devices", ())]


def update_seconds(run: Run, timing: Timing) -> float:
    """Predicted seconds of this rank's share of an average window."""
    samples = min(run.progress.steering.window, run.order.count) * run.share.share
    tokens = samples * float(run.step.samples.lengths.mean())
    return timing.seconds(micro_batches=math.ceil(tokens / run.budget), tokens=tokens)


def card_overhead(device: torch.device) -> Overhead:
    """What the driver counts beyond the allocator, and what the allocator reserves beyond tensors, on this card."""
    free, total = torch.accelerator.get_memory_info(device)
    fixed = max(0, total - free - torch.accelerator.memory_reserved(device))
    slack = torch.accelerator.max_memory_reserved(device) / max(1, torch.accelerator.max_memory_allocated(device))
    return Overhead(fixed=fixed, slack=slack, fixed_high=fixed, slack_high=1.05 * slack, measured=True)


def _timing(part: dict[str, Any], seconds: Seconds) -> Timing | None:
    """A line through the timed micro-batches. The optimizer's part comes from earlier jobs, if there were any."""
    if len(seconds) < 2:
        return None
    key = part.get("timing_key")
    before = stored_timing(key) if key else None
    timing = Timing.through(seconds, per_update=before.per_update if before else 0.0)
    if key:
        store_timing(key, timing)
    return timing


def _planned_device(run: Run) -> dict[str, Any]:
    """The plan's entry for this rank. A plan written by hand may have none."""
    parts = run.attempt.plan.get("devices", ())
    return dict(parts[run.ranks.rank]) if run.ranks.rank < len(parts) else {}

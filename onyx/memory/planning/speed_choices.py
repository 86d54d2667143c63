"""What makes a job's step quicker: whether it is compiled, and whether samples are joined instead of padded.

Both change the bits of an update, so they are decided once, with the plan. Torch is needed only to guess how long a job
takes that no rank has timed. Measured on two cores: a job of a model of 35 million parameters ran 1.05 to 1.25 times as
fast compiled, and its graphs took about a minute to make, half of one from the cache.
"""

import importlib.util
import shutil
import time
from collections.abc import Iterable
from typing import Any

from onyx.memory.planning.device_fit import Fit
from onyx.memory.planning.request import PlanRequest

GAIN = 0.1
"""Part of the time that compiling saves (measured: 0.05 to 0.2)."""

SMALLEST = 64 * 2**20
"""Bytes of weights from which compiling pays (measured: nothing gained at 16 MB, up to 1.25 × the speed at 140 MB)."""

FIRST_SECONDS, AGAIN_SECONDS = 90.0, 30.0
"""What making the graphs takes at first, and when they are in the compiler's cache."""

MARGIN = 2.0
"""By what factor the saved time must exceed the cost."""

BYTES = 2**30
"""Memory that the compiler takes beside the rank on a CPU (measured: 0.3 GB in the rank, 0.7 GB in g++)."""

EAGER_PART = 0.35
"""Part of the rate of plain products that a step reaches when it is not compiled."""

EDGE, REPEATS = 768, 3
"""The product that is timed, and how often: the fastest counts."""


def compile_obstacle(request: PlanRequest, fits: list[Fit]) -> str | None:
    """Why the step cannot be compiled, if it cannot."""
    if request.recipe.objective != "sft":
        return "steps over pairs are not compiled"
    if any(each.device.kind == "cuda" for each in fits):
        return None if importlib.util.find_spec("triton") else "there is no Triton here"
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return "there is no C++ compiler here"
    needed = [each.needs + BYTES for each in fits]
    short = any(each.usable < need for each, need in zip(fits, needed, strict=True))
    return f"the compiler needs {BYTES / 2**30:.0f} GB beside the job" if short else None


def compiling_pays(request: PlanRequest, fits: list[Fit], seconds: float | None, *, known: bool) -> bool:
    """Whether compiling saves more than it costs. `seconds`: the job's time without it; None: it must be guessed.

    `known`: such a job was compiled here before, so its graphs are in the cache.
    """
    if fits[0].footprint.static.weights < SMALLEST:
        return False
    expected = seconds if seconds is not None else _guess(request, fits)
    cost = AGAIN_SECONDS if known else FIRST_SECONDS
    return expected is not None and GAIN * expected > MARGIN * cost


def _guess(request: PlanRequest, fits: list[Fit]) -> float | None:
    """The job's seconds, from the model's arithmetic and this CPU's rate. None for a card, which may not be here."""
    if request.count is None or not request.lengths or any(each.device.kind != "cpu" for each in fits):
        return None
    tokens = request.count * request.epochs * sum(request.lengths) / len(request.lengths)
    parameters = fits[0].footprint.static.weights / 4
    passes = 4 if request.recipe.method == "lora" else 6  # a frozen weight has no gradient
    cores = sum(each.device.cores or 1 for each in fits)
    work = passes * parameters * tokens
    if work < MARGIN * FIRST_SECONDS * 1e9:  # a core does over a billion per second: too short to be worth measuring
        return 0.0
    return work / (cores * EAGER_PART * product_rate(EDGE, REPEATS))


def product_rate(edge: int, repeats: int, threads: int = 1) -> float:
    """Float32 operations per second in plain products, the best of `repeats`."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    matrix = torch.ones(edge, edge)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - began)
    torch.set_num_threads(before)
    return float(2 * edge**3 / best)


FAMILIES = (
    *("cohere", "gemma", "gpt2", "gpt_neox", "granite", "llama", "mistral", "olmo", "olmo2"),
    *("phi", "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"),
)
"""Model types whose attention is known to be the only place where tokens meet, and where it can be replaced."""


def joins_samples(config: Any, request: PlanRequest, labels: Iterable[str]) -> bool:
    """Whether samples are joined: in jobs of these models on CPUs. On a card each run of samples needs more kernels."""
    on_cpu = all(label.startswith("cpu") for label in labels)
    return request.quick and on_cpu and request.recipe.objective == "sft" and _joinable(config, request.longest)


def _joinable(config: Any, length: int) -> bool:
    """Whether joined attention is exact: no code of the model's own, no attention dropout, no window in reach."""
    from onyx.memory.footprint.model_builder import ATTENTION_DROPOUTS, beyond_window

    plain = config.model_type in FAMILIES and not getattr(config, "auto_map", None)
    drops = any(getattr(config, name, None) for name in ATTENTION_DROPOUTS)
    return plain and not drops and not beyond_window(config, length)

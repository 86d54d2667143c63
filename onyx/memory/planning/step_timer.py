"""Times real steps on this process's device. They train the model: give one that is not needed afterwards."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from onyx.memory.footprint.training_step import blank_batch, finish_update, loss_sum
from onyx.memory.planning.timing import Timing
from onyx.recipe.model import autocast
from onyx.recipe.optimizer import make_optimizer
from onyx.recipe.precision import Precision

REPEATS = 3
"""The fastest counts: other load only makes a run slower."""


def measure_timing(
    model: nn.Module,
    shapes: Sequence[tuple[int, int]],
    *,
    causal: bool,
    precision: Precision = "float32",
    device: str = "cpu",
) -> Timing:
    """From micro-batches of two or more shapes (samples, length): a line through the smallest and the largest."""
    if len({samples * length for samples, length in shapes}) < 2:
        raise ValueError("shapes must differ in samples × length: a line needs two points")
    optimizer = make_optimizer(model.parameters())
    seconds = {}
    for samples, length in shapes:
        batch = blank_batch(samples, length, causal=causal, device=device)

        def run() -> None:
            with autocast(precision, device):
                loss = loss_sum(model, batch)  # noqa: B023 - called within this turn of the loop
            loss.backward()

        seconds[samples * length] = _fastest(run, device)
    return Timing.through(seconds, per_update=_fastest(lambda: _update(optimizer), device))


def _update(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for each in group["params"]:
            if each.grad is None:
                each.grad = torch.zeros_like(each)
    finish_update(optimizer)


def _fastest(work: Callable[[], object], device: str) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)

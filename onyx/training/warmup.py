"""Before the first window: what a rank needs at most it takes once, so that running out shows where it is harmless."""

import time

import numpy as np
import torch

from onyx.accumulation.window import Window
from onyx.memory.cpu import is_out_of_memory
from onyx.training.cut import Lengths, samples_within
from onyx.training.oom import finer, free
from onyx.training.share import ShareResult
from onyx.training.worker import Worker

Seconds = dict[int, float]
"""Of micro-batches, by padded tokens."""


def warm_up(worker: Worker, budget: int, window: int, seconds: Seconds | None = None) -> ShareResult:
    """Throw-away micro-batches of the worst shapes, smaller ones where they do not fit. Their gradients stay.

    `seconds` gets what the worst shapes and one shortest sample take. The very first micro-batch is the shortest sample
    too, and not timed: it pays for what a process does once.
    """
    retries = 0
    # One padded row alone would be run without its graph, where the step is compiled.
    shortest = (2 if worker.compiled else 1, int(worker.samples.lengths.min()))
    seconds = {} if seconds is None else seconds
    while True:
        worst = worst_shapes(worker.samples.lengths, budget, window, joined=worker.joined)
        shapes = [shortest, *worst, shortest]
        seconds.clear()
        short = next((shape for shape in shapes if not fits(worker, *shape, seconds)), None)
        if short is None:
            return ShareResult(window=Window(length=1), budget=budget, retries=retries)
        free(worker.parameters)
        retries += 1
        samples, length = short
        smaller = finer(budget, samples=samples, length=length)
        if smaller is None:
            return ShareResult(window=Window(length=1), budget=budget, stuck=length)
        budget = smaller


def worst_shapes(lengths: Lengths, budget: int, window: int, *, joined: bool = False) -> list[tuple[int, int]]:
    """(samples, length) with the longest sample, and with the most padded tokens where that is another one.

    Joined samples fill the budget whatever their lengths are: then it is one shape of as many tokens.
    """
    if joined:
        longest = int(lengths.max())
        samples = min(window, -(-budget // longest))
        return [(samples, longest if samples == 1 else min(longest, budget // samples))]
    shapes = [(min(window, samples_within(budget, length)), length) for length in np.unique(lengths).tolist()]
    largest = max(shapes, key=lambda shape: (shape[0] * shape[1], shape[1]))
    return [shapes[-1]] if largest == shapes[-1] else [shapes[-1], largest]


def fits(worker: Worker, samples: int, length: int, seconds: Seconds) -> bool:
    """Forward and backward of a blank micro-batch; False when memory runs out."""
    began = time.perf_counter()
    try:
        worker.seed_generators()
        batch = worker.objective.blank(samples, length, worker.device)
        worker.scaling.scale(worker.measure(batch).loss).backward()
        if worker.device.type != "cpu":
            torch.accelerator.synchronize(worker.device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        seconds[samples * length] = time.perf_counter() - began  # the later one of two counts
        return True
    return False

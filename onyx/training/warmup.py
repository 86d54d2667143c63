"""Before the first window: what a rank needs at most it takes once, so that running out shows where it is harmless."""

import numpy as np

from onyx.accumulation.window import Window
from onyx.memory.cpu import is_out_of_memory
from onyx.training.cut import Lengths, samples_within
from onyx.training.oom import finer, free
from onyx.training.share import ShareResult
from onyx.training.worker import Worker


def warm_up(worker: Worker, budget: int, window: int) -> ShareResult:
    """Throw-away micro-batches of the worst shapes, smaller ones where they do not fit. Their gradients stay."""
    retries = 0
    while True:
        shapes = worst_shapes(worker.samples.lengths, budget, window)
        short = next((shape for shape in shapes if not _fits(worker, *shape)), None)
        if short is None:
            return ShareResult(window=Window(length=1), budget=budget, retries=retries)
        free(worker.parameters)
        retries += 1
        samples, length = short
        smaller = finer(budget, samples=samples, length=length)
        if smaller is None:
            return ShareResult(window=Window(length=1), budget=budget, stuck=length)
        budget = smaller


def worst_shapes(lengths: Lengths, budget: int, window: int) -> list[tuple[int, int]]:
    """(samples, length) with the longest sample, and with the most padded tokens where that is another one."""
    shapes = [(min(window, samples_within(budget, length)), length) for length in np.unique(lengths).tolist()]
    longest = shapes[-1]
    largest = max(shapes, key=lambda shape: (shape[0] * shape[1], shape[1]))
    return [longest] if largest == longest else [longest, largest]


def _fits(worker: Worker, samples: int, length: int) -> bool:
    try:
        worker.seed_generators()
        batch = worker.objective.blank(samples, length, worker.device)
        worker.scaling.scale(worker.measure(batch).loss).backward()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        return True
    return False

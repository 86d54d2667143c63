"""Before the first window: what a rank needs at most it takes once, so that running out shows where it is harmless."""

import time

import numpy as np
import torch

from onyx.accumulation.window import Window
from onyx.memory.devices.cpu import is_out_of_memory
from onyx.memory.devices.heap import trim_heap
from onyx.training.loss.compiled_loss import CompiledLoss
from onyx.training.packing.cut import Lengths, samples_within
from onyx.training.rank.out_of_memory import finer, free
from onyx.training.rank.share import ShareResult
from onyx.training.rank.step import RankStep
from onyx.training.state.events import Events

Seconds = dict[int, float]
"""Of micro-batches, by padded tokens."""


def warm_up(worker: RankStep, budget: int, window: int, seconds: Seconds | None = None) -> ShareResult:
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


def fits(worker: RankStep, samples: int, length: int, seconds: Seconds) -> bool:
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


def make_graphs(worker: RankStep, compiled: CompiledLoss, budget: int, window: int, events: Events) -> None:
    """Run shapes that lead to every graph that is needed, and close the door on others."""
    began = time.monotonic()
    try:
        for samples, length in graph_shapes(worker.samples.lengths, budget, window, joined=worker.joined):
            # A smaller shape would make another graph, and not the one of an attempt that has more memory.
            if not fits(worker, samples, length, {}):
                compiled.give_up(f"a micro-batch of {samples} × {length} tokens does not fit beside the compiler")
                break
    except Exception as error:  # compilers fail in as many ways as models are written
        compiled.give_up(str(error).strip() or type(error).__name__)
    compiled.freeze()
    free(worker.parameters)
    trim_heap()
    seconds = time.monotonic() - began
    if compiled.failed is None:
        events.say("message", f"the step was compiled in {seconds:.1f} s", {"compile_seconds": seconds})
    else:
        events.say("message", f"the step is not compiled: {compiled.failed}", level="warn")


def graph_shapes(lengths: Lengths, budget: int, window: int, *, joined: bool = False) -> list[tuple[int, int]]:
    """(samples, length) for the graph of several rows, and for that of one row where the longest samples run alone.

    Joined samples are one row always, and need one graph. For padded ones torch makes a graph of its own for one row. A
    single row that is left over at the end of a share is not worth it and runs without. Equal numbers of rows and
    tokens would make a graph for squares only.
    """
    shapes = worst_shapes(lengths, budget, window, joined=joined)
    if joined:
        return shapes
    alone = [shape for shape in shapes if shape[0] == 1]
    rows, length = max(shapes)
    rows = max(2, rows)
    return [(rows + 1 if rows == length else rows, length), *alone]

"""Compiling, before the first window: under the limit that comes then, no compiler could run."""

import time

from onyx.memory.heap import trim_heap
from onyx.training.compiled import CompiledLoss
from onyx.training.cut import Lengths
from onyx.training.events import Events
from onyx.training.oom import free
from onyx.training.warmup import fits, worst_shapes
from onyx.training.worker import Worker


def make_graphs(worker: Worker, compiled: CompiledLoss, budget: int, window: int, events: Events) -> None:
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

"""The start of an attempt: ready the device, compile, warm up, agree on budgets that fit, then limit the memory.

What a rank needs at most it allocates here once, so that running out of memory shows before the first window.
"""

import os
import time

import numpy as np
import torch

from onyx.accumulation.boundary import clear
from onyx.accumulation.window import Window
from onyx.memory.devices.cpu import is_out_of_memory, limit_memory
from onyx.memory.devices.heap import roomy_heap, steady_heap, trim_heap
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Share
from onyx.training.loss.compiled_loss import CompiledLoss
from onyx.training.packing.cut import Lengths, samples_within
from onyx.training.rank.measurements import Seconds, report
from onyx.training.rank.out_of_memory import free_memory, smaller_budget, watch_memory
from onyx.training.rank.run import Run
from onyx.training.rank.share import ShareResult
from onyx.training.rank.step import RankStep
from onyx.training.rank.vote import agree
from onyx.training.state.events import Events
from onyx.training.state.journal import Place


def device_of(share: Share) -> torch.device:
    """A rank that sees one card by its UUID has only that one: number 0."""
    if not share.device.startswith("cuda"):
        return torch.device("cpu")
    return torch.device("cuda", 0) if share.uuid is not None else torch.device(share.device)


def ready_device(share: Share, *, deterministic: bool) -> None:
    """Set threads, visible cards and all else that decides bits."""
    torch.set_num_threads(share.threads)
    if not share.device.startswith("cuda"):
        roomy_heap() if share.heap == "roomy" else steady_heap()
        return
    if share.uuid is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = share.uuid
    torch.set_float32_matmul_precision("highest")  # no TF32
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.accelerator.set_device_index(device_of(share).index or 0)


def start(run: Run, place: Place) -> None:
    """Compile and warm up, with the exchange of gradients too, so that no window allocates more than was tried here.

    `place` is before all that this attempt does: lower budgets found here hold for all of it.
    """
    progress = run.progress
    run.steer(run.journal.steering_for(progress.steering, place.window, evaluation=place.evaluation))
    _lower_to_the_attempt(run, place)
    resident = run.step.resident_bytes(run.optimizer)
    if run.step.compiled is not None and not progress.steering.eager:
        # With the plan's budget, not today's: the graphs of all attempts must be the same.
        make_graphs(run.step, run.step.compiled, run.share.token_budget, run.attempt.spec.window, run.recorder.events)
    watch_memory(resident)
    seconds: Seconds = {}
    share = warm_up(run.step, run.budget, progress.steering.window, seconds)
    agree(run, share, place)
    report(run, seconds)
    run.ranks.reduce(run.step.parameters)
    clear(run.step.parameters)
    trim_heap()
    if run.step.device.type == "cpu" and run.share.memory_bytes is not None:
        # From here on running out is a Python exception, not the kernel's OOM killer.
        limit_memory(max(1, run.share.memory_bytes - resident))


def _lower_to_the_attempt(run: Run, place: Place) -> None:
    """Lower the budgets to this attempt's: each attempt lost to memory halves them, and a new plan may lower them.

    A compiler takes memory that no budget can lower, so after such a loss nothing is compiled any more.
    """
    before, losses = run.progress.steering, run.attempt.memory_losses
    given = [max(1, budget >> losses) for budget in run.planned_budgets]
    lower = tuple(min(pair) for pair in zip(given, before.budgets, strict=True))
    if lower == before.budgets:
        return
    why = f"after {losses} attempts that ended out of memory" if losses else "as the plan has them now"
    message = f"goes on with smaller micro-batches, {why}; the update is the same"
    eager = losses > 0 and run.step.compiled is not None
    run.steer(run.journal.lower_budgets(place, lower, message, eager=eager).applied(before))


def warm_up(step: RankStep, budget: int, window: int, seconds: Seconds | None = None) -> ShareResult:
    """Run blank micro-batches of the worst shapes, smaller ones where they do not fit. Their gradients stay allocated.

    `seconds` gets the times of the worst shapes and of one shortest sample. The very first micro-batch is also the
    shortest sample and not timed: it includes what a process does only once.
    """
    retries = 0
    # Where the step is compiled, one padded row alone would run without its graph.
    shortest = (2 if step.compiled else 1, int(step.samples.lengths.min()))
    seconds = {} if seconds is None else seconds
    while True:
        worst = worst_shapes(step.samples.lengths, budget, window, joined=step.joined)
        shapes = [shortest, *worst, shortest]
        seconds.clear()
        too_large = next((shape for shape in shapes if not fits(step, *shape, seconds)), None)
        if too_large is None:
            return ShareResult(window=Window(length=1), budget=budget, retries=retries)
        free_memory(step.parameters)
        retries += 1
        samples, length = too_large
        smaller = smaller_budget(budget, samples=samples, length=length)
        if smaller is None:
            return ShareResult(window=Window(length=1), budget=budget, oversized=length)
        budget = smaller


def worst_shapes(lengths: Lengths, budget: int, window: int, *, joined: bool = False) -> list[tuple[int, int]]:
    """(samples, length) with the longest sample, and with the most padded tokens where that is another one.

    Joined samples fill the budget whatever their lengths are, so one shape of as many tokens is enough.
    """
    if joined:
        longest = int(lengths.max())
        samples = min(window, -(-budget // longest))
        return [(samples, longest if samples == 1 else min(longest, budget // samples))]
    shapes = [(min(window, samples_within(budget, length)), length) for length in np.unique(lengths).tolist()]
    largest = max(shapes, key=lambda shape: (shape[0] * shape[1], shape[1]))
    return [shapes[-1]] if largest == shapes[-1] else [shapes[-1], largest]


def fits(step: RankStep, samples: int, length: int, seconds: Seconds) -> bool:
    """Forward and backward of a blank micro-batch; False when memory runs out."""
    began = time.perf_counter()
    try:
        step.seed_generators()
        batch = step.objective.blank(samples, length, step.device)
        step.scaling.scale(step.forward(batch).loss).backward()
        if step.device.type != "cpu":
            torch.accelerator.synchronize(step.device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        seconds[samples * length] = time.perf_counter() - began  # of two runs of a shape the later one counts
        return True
    return False


def make_graphs(step: RankStep, compiled: CompiledLoss, budget: int, window: int, events: Events) -> None:
    """Run shapes that make every graph that is needed, then forbid new ones."""
    began = time.monotonic()
    try:
        for samples, length in graph_shapes(step.samples.lengths, budget, window, joined=step.joined):
            # A smaller shape would make another graph than that of an attempt with more memory.
            if not fits(step, samples, length, {}):
                compiled.give_up(f"a micro-batch of {samples} × {length} tokens does not fit beside the compiler")
                break
    except Exception as error:  # a compiler may raise anything
        compiled.give_up(str(error).strip() or type(error).__name__)
    compiled.freeze()
    free_memory(step.parameters)
    trim_heap()
    seconds = time.monotonic() - began
    if compiled.failed is None:
        events.emit(event_kinds.MESSAGE, f"the step was compiled in {seconds:.1f} s", {"compile_seconds": seconds})
    else:
        events.emit(event_kinds.MESSAGE, f"the step is not compiled: {compiled.failed}", level="warn")


def graph_shapes(lengths: Lengths, budget: int, window: int, *, joined: bool = False) -> list[tuple[int, int]]:
    """(samples, length) for the graph of several rows, and for that of one row where the longest samples run alone.

    Joined samples are always one row and need one graph. For padded samples torch makes a separate graph for one row.
    A single row that is left over at the end of a share runs without a graph: one of its own would not pay. Equal
    numbers of rows and tokens would make a graph for squares only.
    """
    shapes = worst_shapes(lengths, budget, window, joined=joined)
    if joined:
        return shapes
    alone = [shape for shape in shapes if shape[0] == 1]
    rows, length = max(shapes)
    rows = max(2, rows)
    return [(rows + 1 if rows == length else rows, length), *alone]

"""The start of a run: warm up, agree on budgets that fit, then close the door on more memory."""

import os

import torch

from onyx.accumulation.boundary import clear
from onyx.memory.devices.cpu import limit_memory
from onyx.memory.devices.heap import roomy_heap, steady_heap, trim_heap
from onyx.training.contract.attempt import Share
from onyx.training.rank.measurements import report
from onyx.training.rank.out_of_memory import watch_memory
from onyx.training.rank.run import Run
from onyx.training.rank.vote import agree
from onyx.training.rank.warmup import Seconds, make_graphs, warm_up
from onyx.training.state.journal import Place


def start(run: Run, place: Place) -> None:
    """Everything that only a first window would take is taken now: buffers of the exchange, too.

    `place` is before all that this attempt does: what is lowered here holds for all of it.
    """
    progress = run.progress
    run.steer(run.journal.obeyed(progress.steering, place.window, evaluation=place.evaluation))
    _lower_to_the_attempt(run, place)
    held = run.worker.held(run.optimizer)
    if run.worker.compiled is not None and not progress.steering.eager:
        # As the plan has it, whatever the budget is by now: the graphs of all attempts must be the same.
        make_graphs(run.worker, run.worker.compiled, run.share.token_budget, run.attempt.spec.window, run.record.events)
    watch_memory(held)
    seconds: Seconds = {}
    share = warm_up(run.worker, run.budget, progress.steering.window, seconds)
    agree(run, share, place)
    report(run, seconds)
    run.ranks.reduce(run.worker.parameters)
    clear(run.worker.parameters)
    trim_heap()
    if run.worker.device.type == "cpu" and run.share.memory_bytes is not None:
        # From here on running out is an exception in Python and not the kernel's OOM killer.
        limit_memory(max(1, run.share.memory_bytes - held))


def _lower_to_the_attempt(run: Run, place: Place) -> None:
    """To what this attempt was given: attempts that ended out of memory halve budgets, and a new plan may lower them.

    Compilers take memory that no budget can make less, so after such an end nothing is compiled any more.
    """
    before, losses = run.progress.steering, run.attempt.memory_losses
    given = [max(1, budget >> losses) for budget in run.planned_budgets]
    lower = tuple(min(pair) for pair in zip(given, before.budgets, strict=True))
    if lower == before.budgets:
        return
    why = f"after {losses} attempts that ended out of memory" if losses else "as the plan has them now"
    message = f"goes on with smaller micro-batches, {why}; the update is the same"
    eager = losses > 0 and run.worker.compiled is not None
    run.steer(run.journal.memory(place, lower, message, eager=eager).applied(before))


def device_of(share: Share) -> torch.device:
    """A rank that is shown one card by its own name has only that one: number 0."""
    if not share.device.startswith("cuda"):
        return torch.device("cpu")
    return torch.device("cuda", 0) if share.uuid is not None else torch.device(share.device)


def ready_device(share: Share, *, deterministic: bool) -> None:
    """Threads, visibility and whatever else decides bits."""
    torch.set_num_threads(share.threads)
    if not share.device.startswith("cuda"):
        roomy_heap() if share.heap == "roomy" else steady_heap()
        return
    if share.uuid is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = share.uuid
    torch.set_float32_matmul_precision("highest")  # TF32 only if asked
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.accelerator.set_device_index(device_of(share).index or 0)

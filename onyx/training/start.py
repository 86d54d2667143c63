"""The start of a run: warm up, agree on budgets that fit, then close the door on more memory."""

from onyx.accumulation.boundary import clear
from onyx.memory.cpu import limit_memory
from onyx.memory.heap import trim_heap
from onyx.training.agree import agree
from onyx.training.graphs import make_graphs
from onyx.training.oom import watch_memory
from onyx.training.probe import report
from onyx.training.run import Run
from onyx.training.warmup import Seconds, warm_up


def start(run: Run) -> None:
    """Everything that only a first window would take is taken now: buffers of the exchange, too."""
    progress = run.progress
    held = run.worker.held(run.optimizer)
    if run.worker.compiled is not None:
        make_graphs(run.worker, run.worker.compiled, run.budget, progress.steering.window, run.record.events)
    watch_memory(held)
    seconds: Seconds = {}
    share = warm_up(run.worker, run.budget, progress.steering.window, seconds)
    agree(run, share, progress.windows)
    report(run, seconds)
    run.ranks.reduce(run.worker.parameters)
    clear(run.worker.parameters)
    trim_heap()
    if run.worker.device.type == "cpu" and run.share.memory_bytes is not None:
        # From here on running out is an exception in Python and not the kernel's OOM killer.
        limit_memory(max(1, run.share.memory_bytes - held))

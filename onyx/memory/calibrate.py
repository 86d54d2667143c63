"""Measures the overhead of this machine: a small training run in a process of its own, watched from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from onyx.memory.heap import free_in_heap, steady_heap, trim_heap
from onyx.memory.model import build, is_causal
from onyx.memory.overhead import Overhead
from onyx.memory.probe import fake_copy, fake_tensors, token_trace
from onyx.memory.recipe import Recipe
from onyx.memory.step import blank_batch, finish_update, loss_sum, make_optimizer

RUNS = ((1, 64), (4, 96))
"""(samples, length) of small training runs: many tensors below the heap's threshold, and many above."""

HELD_SIZES = tuple(150_000 + 37_123 * i for i in range(100))
"""Bytes of tensors that are only held, to see what the allocator takes for them: 200 MB in a moment."""

UPDATES = 1
POLL_SECONDS = 0.001
MOST_SLACK = 1.5
SLACK_SPREAD = 0.02

LIMITED = "VmData"
"""What RLIMIT_DATA limits: a little more than RssAnon, by what was mapped and not yet touched."""

TIMEOUT_SECONDS = 300

HOLES = 8 * 2**20
"""Free bytes in a heap that make it unlike that of the template, which runs no tensor operation."""


def measure_cpu() -> Overhead:
    """The overhead of a process that was forked with torch imported, as ranks are.

    A process of several threads must not fork, and one whose heap has holes would pass them on: a fresh interpreter
    does it then, which takes seconds longer.
    """
    if len(list(Path("/proc/self/task").iterdir())) == 1 and free_in_heap() < HOLES:
        return measure_here()
    command = [sys.executable, "-m", "onyx.memory.calibrate"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(  # noqa: S603 - our own module
        command, env=alone, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    return Overhead.from_json(done.stdout.splitlines()[-1])


def measure_here() -> Overhead:
    """Fork, train, watch: what the process takes beyond slack × live tensors is its fixed part."""
    slack = min(max(growth(_hold) / sum(HELD_SIZES), 1.0), MOST_SLACK)
    config, recipe = _subject()
    rests = []
    for samples, length in RUNS:
        with fake_tensors():
            live = token_trace(fake_copy(build(config, recipe)), samples, length, causal=True).peak
        rests.append(growth(partial(train, config, recipe, samples, length), LIMITED) - int(slack * live))
    fixed = max(0, *rests)
    high = fixed + max(fixed, max(rests) - min(rests))
    return Overhead(fixed=fixed, slack=slack, fixed_high=high, slack_high=slack + SLACK_SPREAD, measured=True)


def _hold() -> None:
    steady_heap()
    held = [torch.ones(size, dtype=torch.uint8) for size in HELD_SIZES]
    time.sleep(10 * POLL_SECONDS)  # long enough to be seen
    del held


def train(config: Any, recipe: Recipe, samples: int, length: int, updates: int = UPDATES) -> None:
    """What a rank does, as far as memory goes.

    Micro-batches of another size come first, as they do in training: the small blocks that they leave in the heap
    stay there (measured: 4.5 MB), and a run of one shape alone would not show them.
    """
    steady_heap()
    torch.set_num_threads(1)
    model = build(config, recipe, "cpu")
    optimizer = make_optimizer(model.parameters())
    causal = is_causal(config, recipe)
    for size in (1, *[samples] * updates):
        for _ in range(2):
            loss = loss_sum(model, blank_batch(size, length, causal=causal))
            loss.backward()
            del loss
        finish_update(optimizer)


def growth(work: Callable[[], object], field: str = "RssAnon") -> int:
    """By how many bytes a forked process grows at most while it does `work`, by a field of its /proc status."""
    trim_heap()  # what the parent freed but kept would be the child's to use, and not be seen
    start_reader, start_writer = os.pipe()
    failure_reader, failure_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(start_writer)
        _obey(work, start_reader, failure_writer)
    os.close(start_reader)
    os.close(failure_writer)
    before = most = taken(child, field) or 0
    os.close(start_writer)  # which the child waits for
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        most = max(most, taken(child, field) or 0)
        time.sleep(POLL_SECONDS)
    with os.fdopen(failure_reader) as reader:
        failure = reader.read()
    if failure:
        raise RuntimeError(f"the measured process failed: {failure}")
    return most - before


def _obey(work: Callable[[], object], start: int, failure: int) -> NoReturn:
    """The child: waits, works and ends here, for what follows is the parent's to do."""
    try:
        os.read(start, 1)
        work()
    except BaseException as error:  # told to the parent, which raises it
        os.write(failure, f"{type(error).__name__}: {error}".encode()[:4000])
    finally:
        os._exit(0)


def taken(pid: int, field: str) -> int | None:
    """Bytes of a process by a field of its status; None when it is gone."""
    try:
        for text in Path(f"/proc/{pid}/status").read_text().splitlines():
            if text.startswith(f"{field}:"):
                return int(text.split()[1]) * 1024
    except OSError:
        pass
    return None


def _subject() -> tuple[Any, Recipe]:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=2048,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    return config, Recipe(model=config, max_length=128)


if __name__ == "__main__":
    sys.stdout.write(measure_here().to_json() + "\n")

"""Measures the overhead of this machine: a small training run in a process of its own.

What counts is memory that was touched and that no file backs. VmData counts more than is used: MKL maps a buffer for
each size of product and touches a part of it (measured: 8 to 26 MB, depending on the order of shapes).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo  # the first optimizer of a process imports it: here once, not in every measured child
from torch import nn

from onyx.memory.devices.heap import free_in_heap, steady_heap, trim_heap
from onyx.memory.devices.peak_memory import Watermark
from onyx.memory.footprint.overhead import Overhead
from onyx.memory.footprint.probe import trace
from onyx.memory.footprint.training_step import finish_update
from onyx.recipe.optimizer import make_optimizer

RUNS = ((1, 64), (4, 128))
"""(samples, length) of small training runs: many tensors below the heap's threshold, and many above.

From 512 rows MKL keeps a copy of a weight as it multiplies by it, up to 11 MB of it (measured: at 384 rows 0.5 MB,
at 512 rows 6 MB for 256 × 6,000, 11 MB for 576 × 24,000): the second run has that many rows, and a head that wide.
"""

WIDTH, DEPTH, VOCABULARY = 256, 4, 6000

HELD_SIZES = tuple(150_000 + 37_123 * i for i in range(50))
"""Bytes of tensors that are only held, to see what the allocator takes for them: 50 MB at once."""

UPDATES = 1
MOST_SLACK = 1.5
SLACK_SPREAD = 0.02

TIMEOUT_SECONDS = 300

HOLES = 8 * 2**20
"""Free bytes that make a heap unlike the fork server's, which runs no tensor operation."""


def measure_cpu() -> Overhead:
    """The overhead of a process that was forked with torch imported, as ranks are.

    A process of several threads must not fork, and one whose heap has holes passes them on: then a fresh interpreter
    measures, which takes seconds longer. A helper process of the fork server can measure itself.
    """
    if len(list(Path("/proc/self/task").iterdir())) == 1 and free_in_heap() < HOLES:
        return measure_here()
    command = [sys.executable, "-m", "onyx.memory.footprint.calibrate"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(  # noqa: S603 - our own module
        command, env=alone, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    return Overhead.from_json(done.stdout.splitlines()[-1])


def measure_here() -> Overhead:
    """Train in forks and measure them: what a process takes beyond slack × live tensors is its fixed part."""
    trim_heap()  # children would reuse, unmeasured, what this process has freed but kept
    trained = [partial(_growth, partial(_train, *run)) for run in RUNS]
    counted = [partial(_live, *run) for run in RUNS]
    held, *numbers = map(int, _in_forks([partial(_growth, _hold), *trained, *counted]))
    slack = min(max(held / sum(HELD_SIZES), 1.0), MOST_SLACK)
    grown, live = numbers[: len(RUNS)], numbers[len(RUNS) :]
    rests = [taken - int(slack * alive) for taken, alive in zip(grown, live, strict=True)]
    fixed = max(0, *rests)
    high = fixed + max(fixed, max(rests) - min(rests))
    return Overhead(fixed=fixed, slack=slack, fixed_high=high, slack_high=slack + SLACK_SPREAD, measured=True)


def prepare_process() -> None:
    """The settings of a rank of one thread."""
    steady_heap()
    torch.set_num_threads(1)


def _hold() -> None:
    prepare_process()
    held = [torch.ones(size, dtype=torch.uint8) for size in HELD_SIZES]
    del held


class Subject(nn.Module):
    """A transformer of torch's own layers: importing transformers would take seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layers = [
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def loss(self, samples: int, length: int) -> torch.Tensor:
        """The loss of token 0 after token 0."""
        ids = torch.zeros((samples, length), dtype=torch.long)
        logits = self.head(self.layers(self.embedding(ids)))
        return nn.functional.cross_entropy(logits.flatten(0, -2), ids.flatten(), reduction="sum")


def _live(samples: int, length: int) -> str:
    torch.set_num_threads(1)
    subject = Subject()
    return str(trace(subject, lambda count: subject.loss(count, length), samples, length).peak)


def _train(samples: int, length: int) -> None:
    prepare_process()
    subject = Subject()
    train(subject, lambda count: subject.loss(count, length), samples)


def train(model: nn.Module, loss: Callable[[int], torch.Tensor], samples: int, updates: int = UPDATES) -> None:
    """What a rank does, as far as memory goes; call `prepare_process` before the model is made.

    Micro-batches of another size come first, as they do in training: the small blocks that they leave in the heap
    stay there (measured: 4.5 MB), and a run of one shape alone would not show them.
    """
    optimizer = make_optimizer(model.parameters())
    for size in (1, *[samples] * updates):
        for _ in range(2):
            loss(size).backward()
        finish_update(optimizer)


def growth(work: Callable[[], object]) -> int:
    """By how many bytes a forked process grows at most while it does `work`, files not counted."""
    trim_heap()
    return int(in_fork(partial(_growth, work)))


def _growth(work: Callable[[], object]) -> str:
    """Growth of this process by the kernel's high-water mark. Polling from outside missed peaks on a busy machine."""
    mark = Watermark.begin(held=0)
    work()
    return str(mark.peak())


def in_fork(work: Callable[[], str]) -> str:
    """What `work` returns in a forked process, so that this one's memory does not change."""
    return _in_forks([work])[0]


def _in_forks(works: Sequence[Callable[[], str]]) -> list[str]:
    """The same for several processes at once: each has its own memory and high-water mark."""
    children = [_fork(work) for work in works]
    answers = [_read(answer) for _, answer in children]
    for child, _ in children:
        os.waitpid(child, 0)
    return [_result(answer) for answer in answers]


def _fork(work: Callable[[], str]) -> tuple[int, int]:
    """Start a child that runs `work`: its id, and a descriptor to read its answer from."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run_and_exit(work, writer)
    os.close(writer)
    return child, reader


def _run_and_exit(work: Callable[[], str], writer: int) -> NoReturn:
    """In the child: run `work`, send its answer and exit."""
    try:
        os.write(writer, b"+" + work().encode())
    except BaseException as error:  # sent to the parent, which raises it
        os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
    finally:
        os._exit(0)


def _read(reader: int) -> str:
    with os.fdopen(reader) as file:
        return file.read()


def _result(answer: str) -> str:
    if not answer.startswith("+"):
        raise RuntimeError(f"the measured process failed: {answer or 'it ended without an answer'}")
    return answer[1:]


if __name__ == "__main__":
    sys.stdout.write(measure_here().to_json() + "\n")

"""The loss of a micro-batch, compiled: the same sums in fewer passes over memory."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onyx.memory.footprint.training_step import Batch
from onyx.training.loss.objective import loss_and_correct


class CompiledLoss:
    """`loss_and_correct` compiled by torch for dynamic shapes, or as it is after compiling has failed.

    Graphs are cached in a directory, so that only the first attempt of the first job waits for them.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory)
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # no pool of processes beside the rank
        self._loss: Any = torch.compile(loss_and_correct, dynamic=True)
        self.failed: str | None = None
        """Why nothing is compiled; None while it is."""

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, right = self._loss(model, batch)
        return loss, right

    def give_up(self, reason: str) -> None:
        """Go on without compiling."""
        self._loss = loss_and_correct
        self.failed = reason.split("\n", 1)[0][:200]

    def freeze(self) -> None:
        """Make no new graphs. A shape without a graph runs without compiling."""
        torch.compiler.set_stance("eager_on_recompile")

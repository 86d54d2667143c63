"""The loss of a micro-batch, compiled: the same sums in fewer passes over memory."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onyx.memory.footprint.training_step import Batch
from onyx.training.loss.objective import loss_and_correct


class CompiledLoss:
    """`loss_and_correct` as torch.compile makes it, for every shape at once; as it is once that has failed.

    Graphs are kept in a directory between jobs and attempts, so that only the first one waits for them.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory)
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # no pool of processes beside the rank
        self._loss: Any = torch.compile(loss_and_correct, dynamic=True)
        self.failed: str | None = None
        """Why nothing is compiled, once that is so."""

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, right = self._loss(model, batch)
        return loss, right

    def give_up(self, reason: str) -> None:
        """Go on without."""
        self._loss = loss_and_correct
        self.failed = reason.split("\n", 1)[0][:200]

    def freeze(self) -> None:
        """From here on no shape makes a new graph: one that has none runs as it is."""
        torch.compiler.set_stance("eager_on_recompile")

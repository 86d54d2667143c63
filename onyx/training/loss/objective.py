"""What a job learns by: the loss of a micro-batch, and what an evaluation counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from onyx.memory.footprint.training_step import (
    IGNORED,
    ROWS,
    Batch,
    blank_batch,
    blank_pairs,
    logits_of,
    loss_of,
    preference_loss,
    reward_margins,
)
from onyx.training.contract.spec import TrainingSpec
from onyx.training.packing.samples import blank_row

Loss = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]
"""The sum of a batch's losses, and how many of its label tokens the model has right."""


def loss_and_correct(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Both from one forward."""
    logits, labels = logits_of(model, batch), batch.labels.flatten()
    correct = count_correct(logits.detach(), labels)  # before the loss allocates more: counting is never the peak
    return loss_of(logits, labels), correct


def count_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many label tokens the model predicts. Logits are (tokens, vocabulary), without a gradient."""
    # On a CPU `max` takes half the time of `argmax`; neither allocates anything of the logits' size.
    predicted = logits.max(-1).indices
    return ((predicted == labels) & (labels != IGNORED)).sum()


@dataclass(frozen=True)
class ForwardResult:
    """A micro-batch after its forward."""

    loss: Tensor
    """The sum over label tokens or pairs, with a gradient."""

    sums: Tensor
    """Without a gradient. Last: how many label tokens or pairs are right. Before it, for pairs: the sum of margins."""


class Objective(Protocol):
    """What a job learns by."""

    def measure(self, model: nn.Module, batch: Batch) -> ForwardResult:
        """A forward to train on."""
        ...

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of losses, and how many label tokens or pairs the model has right."""
        ...

    def blank(self, samples: int, length: int, device: torch.device) -> Batch:
        """A batch of that many samples of `length` padded tokens, to try whether it fits into memory."""
        ...


@dataclass(frozen=True)
class SupervisedObjective:
    """Supervised: every label token counts."""

    loss: Loss = loss_and_correct
    joined: bool = False

    def measure(self, model: nn.Module, batch: Batch) -> ForwardResult:
        loss, correct = self.loss(model, batch)
        return ForwardResult(loss, correct[None])

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        return loss_and_correct(model, batch)

    def blank(self, samples: int, length: int, device: torch.device) -> Batch:
        if self.joined:
            return blank_row(samples, length, device)
        return blank_batch(samples, length, causal=True, device=str(device))


@dataclass(frozen=True)
class PreferenceObjective:
    """DPO: every pair counts."""

    beta: float

    def measure(self, model: nn.Module, batch: Batch) -> ForwardResult:
        margins = reward_margins(model, batch, self.beta)
        detached = margins.detach()
        return ForwardResult(
            preference_loss(margins), torch.stack([detached.sum(), (detached > 0).sum().to(detached.dtype)])
        )

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        margins = reward_margins(model, batch, self.beta)
        return preference_loss(margins), (margins > 0).sum()

    def blank(self, samples: int, length: int, device: torch.device) -> Batch:
        return blank_pairs(samples, length // ROWS, device=str(device))


def objective_of(spec: TrainingSpec, loss: Loss = loss_and_correct, *, joined: bool = False) -> Objective:
    """The objective of a spec. `loss` may be a compiled one; `joined` says how its blank batches are made."""
    return PreferenceObjective(spec.dpo_beta) if spec.objective == "dpo" else SupervisedObjective(loss, joined)

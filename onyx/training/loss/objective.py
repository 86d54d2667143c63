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
    right = count_correct(logits.detach(), labels)  # before the loss makes more of their size: so it is never the peak
    return loss_of(logits, labels), right


def count_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many label tokens are what the model holds likeliest; logits are (tokens, vocabulary), without a gradient."""
    # `max` reads a CPU's logits in half the time of `argmax`, and neither makes anything of their size.
    likeliest = logits.max(-1).indices
    return ((likeliest == labels) & (labels != IGNORED)).sum()


@dataclass(frozen=True)
class ForwardResult:
    """A micro-batch after its forward."""

    loss: Tensor
    """The sum over label tokens or pairs: what is differentiated."""

    sums: Tensor
    """What else is told of it, without a gradient; the last is how many label tokens, or pairs, the model has right.
    Before it, for pairs: the sum of their reward margins."""


class Objective(Protocol):
    """What a job learns by."""

    def measure(self, model: nn.Module, batch: Batch) -> ForwardResult:
        """A forward to learn from."""
        ...

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of losses, and how many label tokens or pairs the model has right."""
        ...

    def blank(self, samples: int, length: int, device: torch.device) -> Batch:
        """A batch of that many samples, each of `length` padded tokens, to try whether it fits."""
        ...


@dataclass(frozen=True)
class SupervisedObjective:
    """Supervised: every label token counts."""

    loss: Loss = loss_and_correct
    joined: bool = False

    def measure(self, model: nn.Module, batch: Batch) -> ForwardResult:
        loss, right = self.loss(model, batch)
        return ForwardResult(loss, right[None])

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
        still = margins.detach()
        return ForwardResult(preference_loss(margins), torch.stack([still.sum(), (still > 0).sum().to(still.dtype)]))

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        margins = reward_margins(model, batch, self.beta)
        return preference_loss(margins), (margins > 0).sum()

    def blank(self, samples: int, length: int, device: torch.device) -> Batch:
        return blank_pairs(samples, length // ROWS, device=str(device))


def objective_of(spec: TrainingSpec, loss: Loss = loss_and_correct, *, joined: bool = False) -> Objective:
    """`loss` may be a compiled one, and of samples that are joined."""
    return PreferenceObjective(spec.dpo_beta) if spec.objective == "dpo" else SupervisedObjective(loss, joined)

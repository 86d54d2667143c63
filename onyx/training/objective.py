"""What a job learns by: the loss of a micro-batch, and what an evaluation counts."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from onyx.memory.preference import ROWS, blank_pairs, preference_loss, reward_margins
from onyx.memory.step import IGNORED, Batch, blank_batch
from onyx.training.accuracy import Loss, loss_and_right
from onyx.training.spec import TrainingSpec


@dataclass(frozen=True)
class Measured:
    """A micro-batch after its forward."""

    loss: Tensor
    """The sum over label tokens or pairs: what is differentiated."""

    sums: Tensor | None = None
    """What else is told of it, without a gradient; the last is how many label tokens, or pairs, the model has right.
    Before it, for pairs: the sum of their reward margins."""


class Objective(Protocol):
    """What a job learns by."""

    def measure(self, model: nn.Module, batch: Batch) -> Measured:
        """A forward to learn from."""
        ...

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of losses, and how many label tokens or pairs the model has right."""
        ...

    def blank(self, samples: int, length: int, device: torch.device) -> Batch:
        """A batch of that many samples, each of `length` padded tokens, to try whether it fits."""
        ...


@dataclass(frozen=True)
class Imitate:
    """Supervised: every label token counts."""

    loss: Loss = loss_and_right

    def measure(self, model: nn.Module, batch: Batch) -> Measured:
        loss, right = self.loss(model, batch)
        return Measured(loss, right[None])

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=batch.input_ids, use_cache=False).logits.flatten(0, -2).float()
        labels = batch.labels.flatten()
        loss = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        return loss, ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()

    def blank(self, samples: int, length: int, device: torch.device) -> Batch:
        return blank_batch(samples, length, causal=True, device=str(device))


@dataclass(frozen=True)
class Prefer:
    """DPO: every pair counts."""

    beta: float

    def measure(self, model: nn.Module, batch: Batch) -> Measured:
        margins = reward_margins(model, batch, self.beta)
        still = margins.detach()
        return Measured(preference_loss(margins), torch.stack([still.sum(), (still > 0).sum().to(still.dtype)]))

    def score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        margins = reward_margins(model, batch, self.beta)
        return preference_loss(margins), (margins > 0).sum()

    def blank(self, samples: int, length: int, device: torch.device) -> Batch:
        return blank_pairs(samples, length // ROWS, device=str(device))


def objective_of(spec: TrainingSpec, loss: Loss = loss_and_right) -> Objective:
    """`loss` may be a compiled one."""
    return Prefer(spec.dpo_beta) if spec.objective == "dpo" else Imitate(loss)

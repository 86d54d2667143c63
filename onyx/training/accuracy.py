"""How often a model has its labels right."""

from collections.abc import Callable

from torch import Tensor, nn

from onyx.memory.step import IGNORED, Batch, logits_of, loss_of

Loss = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]
"""The sum of a batch's losses, and how many of its label tokens the model has right."""


def loss_and_right(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Both from one forward."""
    logits, labels = logits_of(model, batch), batch.labels.flatten()
    right = count_right(logits.detach(), labels)  # before the loss makes more of their size: so it is never the peak
    return loss_of(logits, labels), right


def count_right(logits: Tensor, labels: Tensor) -> Tensor:
    """How many label tokens are what the model holds likeliest; logits are (tokens, vocabulary), without a gradient."""
    # `max` reads a CPU's logits in half the time of `argmax`, and neither makes anything of their size.
    likeliest = logits.max(-1).indices
    return ((likeliest == labels) & (labels != IGNORED)).sum()

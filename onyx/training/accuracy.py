"""How often a model has its labels right."""

import torch
from torch import Tensor

from onyx.memory.step import IGNORED


@torch.no_grad()
def count_right(logits: Tensor, labels: Tensor) -> Tensor:
    """How many label tokens are what the model holds likeliest; logits are (tokens, vocabulary)."""
    # `max` reads a CPU's logits in half the time of `argmax`, and neither makes anything of their size.
    likeliest = logits.max(-1).indices
    return ((likeliest == labels) & (labels != IGNORED)).sum()

"""AdamW as every step uses it."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import AdamW


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    learning_rate: float = 5e-5,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> AdamW:
    """Fused AdamW over what is trained, its state allocated: the first update needs no more than the others.

    Norms and biases do not decay: they have one dimension.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = AdamW(
        [group for group in groups if group["params"]], lr=learning_rate, betas=betas, eps=epsilon, fused=True
    )
    _allocate_state(optimizer)
    return optimizer


def _allocate_state(optimizer: AdamW) -> None:
    """Give AdamW the state that its first step would give it, so that running out of memory shows now."""
    for group in optimizer.param_groups:
        for each in group["params"]:
            optimizer.state[each] = {
                "step": torch.zeros((), dtype=torch.float32, device=each.device),
                "exp_avg": torch.zeros_like(each, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(each, memory_format=torch.preserve_format),
            }

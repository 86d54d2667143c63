"""The step of preference training (DPO), piece by piece the one that training runs.

A sample is a pair: two rows of a batch, the preferred answer and then the other. Its loss is
-log sigmoid(beta × ((policy − reference of the preferred) − (policy − reference of the other))), where each term is the
log-probability of an answer: the sum over its label tokens. The reference's are numbers that are given.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from onyx.memory.step import IGNORED, Batch, blank_batch

ROWS = 2
"""Rows of a batch that a pair makes."""


def blank_pairs(pairs: int, length: int, *, device: str = "cpu") -> Batch:
    """A batch of pairs of token 0."""
    batch = blank_batch(ROWS * pairs, length, causal=True, device=device)
    return replace(batch, reference=torch.zeros(ROWS * pairs, device=device))


def log_probabilities(model: nn.Module, batch: Batch) -> Tensor:
    """Of each row's label tokens together."""
    logits = model(input_ids=batch.input_ids, use_cache=False).logits
    losses = functional.cross_entropy(
        logits.flatten(0, -2).float(), batch.labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return -losses.view(batch.labels.shape).sum(-1)


def reward_margins(model: nn.Module, batch: Batch, beta: float) -> Tensor:
    """Of each pair: by how much more than the reference the model prefers the preferred answer."""
    if batch.reference is None:
        raise ValueError("a batch of pairs comes with its reference")
    rewards = beta * (log_probabilities(model, batch) - batch.reference)
    return rewards[0::ROWS] - rewards[1::ROWS]


def preference_loss(margins: Tensor) -> Tensor:
    """Sum of the pairs' losses."""
    return -functional.logsigmoid(margins).sum()


def pair_loss_sum(model: nn.Module, batch: Batch, beta: float = 0.1) -> Tensor:
    """Sum of the losses of all pairs of a batch."""
    return preference_loss(reward_margins(model, batch, beta))

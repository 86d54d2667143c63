"""The training step that probes run, of the same pieces as the one that ranks run.

Loss is the sum over label tokens (or samples) divided by the window's weight; labels are shifted instead of logits,
so that no copy of the logits is made; nothing keeps the logits alive in backward but autograd itself.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from onyx.accumulation.boundary import parameters_of

IGNORED = -100
"""The label of a token that does not count."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch: rows padded on the right, or one row of samples joined end to end."""

    input_ids: torch.Tensor
    """(samples, length) token ids; (1, tokens) where joined."""

    labels: torch.Tensor
    """Of the same shape, already shifted, `IGNORED` where no loss is; (samples,) class ids for a classifier."""

    attention_mask: torch.Tensor | None
    """None for causal models: no token looks to its right, so padding there changes nothing and needs no mask."""

    positions: torch.Tensor | None = None
    """(1, tokens) where joined: how far each token is from its sample's first."""

    runs: torch.Tensor | None = None
    """(1, 1, 1, 2 × runs) where joined: how many samples of which length stand side by side. Never of size 1, which a
    compiler would take for a constant."""

    reference: torch.Tensor | None = None
    """(rows,) for pairs: the log-probability that the model gave each row's labels before training."""


def blank_batch(samples: int, length: int, *, causal: bool, device: str = "cpu") -> Batch:
    """A batch of token 0 with one padded position, so that a mask, where there is one, cannot be skipped."""
    ids = torch.zeros((samples, length), dtype=torch.long, device=device)
    if causal:
        return Batch(input_ids=ids, labels=torch.zeros_like(ids), attention_mask=None)
    mask = torch.ones_like(ids)
    mask[:, -1] = 0
    labels = torch.zeros((samples,), dtype=torch.long, device=device)
    return Batch(input_ids=ids, labels=labels, attention_mask=mask)


def loss_sum(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Sum of the losses of all label tokens, or of all samples of a classifier."""
    return loss_of(logits_of(model, batch), batch.labels.flatten())


def logits_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """(tokens, vocabulary), or (samples, classes)."""
    logits: torch.Tensor = model(input_ids=batch.input_ids, **_how(batch)).logits
    return logits.flatten(0, -2)


def _how(batch: Batch) -> dict[str, Any]:
    if batch.runs is not None:
        return {"attention_mask": batch.runs, "position_ids": batch.positions, "use_cache": False}
    return {"use_cache": False} if batch.attention_mask is None else {"attention_mask": batch.attention_mask}


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of their losses."""
    return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


def finish_update(optimizer: torch.optim.Optimizer, max_norm: float | None = 1.0) -> None:
    """Clip, step, clear, as `boundary.close` does, but without reading the norm: fake tensors have no values."""
    if max_norm is not None:
        nn.utils.clip_grad_norm_(parameters_of(optimizer), max_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


ROWS = 2
"""Rows of a batch that a pair makes."""


def blank_pairs(pairs: int, length: int, *, device: str = "cpu") -> Batch:
    """A batch of pairs of token 0."""
    batch = blank_batch(ROWS * pairs, length, causal=True, device=device)
    return replace(batch, reference=torch.zeros(ROWS * pairs, device=device))


def log_probabilities(model: nn.Module, batch: Batch) -> Tensor:
    """The log-probability of each row's label tokens together."""
    logits = model(input_ids=batch.input_ids, use_cache=False).logits
    losses = functional.cross_entropy(
        logits.flatten(0, -2).float(), batch.labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return -losses.view(batch.labels.shape).sum(-1)


def reward_margins(model: nn.Module, batch: Batch, beta: float) -> Tensor:
    """Of each pair: how much more than the reference the model prefers the chosen answer."""
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

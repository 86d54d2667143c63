"""Exact accumulation in a training loop of your own: any cut of a batch gives the update of the whole batch.

python examples/own_loop.py
"""

import copy

import torch
from torch import nn

from onyx.accumulation.boundary import close
from onyx.accumulation.window import Window

BATCH = 32
MICRO_BATCH = 12  # does not divide it: the last one has 8


def train(model: nn.Module, samples: torch.Tensor, micro_batch: int) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in samples.split(BATCH):
        parts = batch.split(micro_batch)
        window = Window(length=len(parts), weight=len(batch))  # what the window weighs is known first
        for part in parts:
            window.take(model(part).pow(2).sum(), reduction="sum").backward()
        assert close(window, optimizer, max_norm=1.0).stepped
    return model


if __name__ == "__main__":
    torch.manual_seed(0)
    fresh = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    data = torch.randn(10 * BATCH, 4)
    accumulated = train(copy.deepcopy(fresh), data, MICRO_BATCH)
    at_once = train(copy.deepcopy(fresh), data, BATCH)
    for mine, theirs in zip(accumulated.parameters(), at_once.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    print("micro-batches of 12, 12 and 8, or one batch of 32: the same model")

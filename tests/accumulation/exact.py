"""Helpers for tests of exactness: ragged batches, a small model, the weights after training on big batches."""

import copy
from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import Module

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Largest allowed relative difference, as norm of the difference over norm."""

ragged_sizes = st.lists(st.integers(1, 7), min_size=1, max_size=20)
dtypes = st.sampled_from([torch.float32, torch.float64])
window_lengths = st.integers(1, 16)

Batch = tuple[Tensor, Tensor]


def make_model(dtype: torch.dtype = torch.float32) -> Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def make_batches(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Batch]:
    generator = torch.Generator().manual_seed(sum(sizes))
    return [
        (
            torch.randn(size, 5, generator=generator, dtype=torch.float64).to(dtype),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for size in sizes
    ]


def mean_loss(model: Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sum_loss(model: Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def join(batches: Sequence[Batch]) -> Batch:
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def windows(batches: Sequence[Batch], length: int) -> list[Sequence[Batch]]:
    return [batches[start : start + length] for start in range(0, len(batches), length)]


def big_batch_weights(model: Module, batches: Sequence[Batch], length: int, lr: float = 0.1) -> Tensor:
    """The weights after one SGD update per window, each on the window's samples as one batch."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for window in windows(batches, length):
        mean_loss(model, join(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(model)


def flat(model: Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def flat_grad(model: Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())

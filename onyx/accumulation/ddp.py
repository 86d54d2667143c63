"""DDP-wrapped models: ranks exchange gradients once per window, in the backward of its last micro-batch.

DDP decides in the forward whether the backward exchanges. So `no_sync` must be around forward and backward; around
backward alone it has no effect. Averaging is linear: exchanging more often costs more and gives the same result.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, distributed
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from onyx.accumulation.exchange import reduce_gradients
from onyx.accumulation.lazy_scalar import Number


class DdpPeers:
    """The ranks of a DDP model."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.size: int = model.process_group.size()
        self._group = model.process_group
        self._device = next(model.parameters()).device

    def total(self, value: Number) -> Number:
        tensor = torch.as_tensor(value, dtype=torch.float64, device=self._device).clone()
        distributed.all_reduce(tensor, group=self._group)
        return tensor if isinstance(value, Tensor) else tensor.item()

    def least(self, value: int) -> int:
        """The smallest `value` of all ranks."""
        tensor = torch.tensor(value, device=self._device)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN, group=self._group)
        return int(tensor.item())


def unwrapped(model: Module) -> Module:
    """The model without its DDP wrapper: its parameters have the names that the user gave them."""
    inner: Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


def peers_of(model: Module) -> DdpPeers | None:
    """The ranks that `model` exchanges gradients with; None if it is not a DDP model."""
    return DdpPeers(model) if isinstance(model, DistributedDataParallel) else None


def sync_if(model: Module, last: bool) -> AbstractContextManager[None]:
    """A context for forward and backward of one micro-batch: `no_sync` unless it is the last of its window."""
    if last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return _no_sync(model)


@contextmanager
def _no_sync(model: DistributedDataParallel) -> Iterator[None]:
    with model.no_sync():
        yield


def skips_sync(model: Module) -> bool:
    """Whether the backward of this micro-batch exchanges nothing."""
    return isinstance(model, DistributedDataParallel) and not model.require_backward_grad_sync


def exchange_now(model: Module) -> None:
    """Average the gradients of all ranks, for a window whose last backward exchanged nothing."""
    if isinstance(model, DistributedDataParallel):
        reduce_gradients(list(model.parameters()), group=model.process_group, average=True)

"""DDP-wrapped models: gradients are exchanged once per window, in the backward of its last micro-batch.

DDP arms its exchange in the forward. So leaving it out needs a context around forward and backward both; around
backward alone it saves nothing. All of this is linear: exchanging more often changes the cost, never the result.
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
        """The smallest `value` of all ranks: what all of them can do."""
        tensor = torch.tensor(value, device=self._device)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN, group=self._group)
        return int(tensor.item())


def unwrapped(model: Module) -> Module:
    """The model itself, whose parameters have the names that users know."""
    inner: Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


def peers_of(model: Module) -> DdpPeers | None:
    """The ranks that `model` exchanges gradients with, if it is a DDP model."""
    return DdpPeers(model) if isinstance(model, DistributedDataParallel) else None


def sync_if(model: Module, last: bool) -> AbstractContextManager[None]:
    """Around forward and backward of one micro-batch: no exchange unless it is the window's last."""
    if last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return _no_sync(model)


@contextmanager
def _no_sync(model: DistributedDataParallel) -> Iterator[None]:
    with model.no_sync():
        yield


def skips_sync(model: Module) -> bool:
    """Whether this micro-batch's gradients stay on this rank."""
    return isinstance(model, DistributedDataParallel) and not model.require_backward_grad_sync


def exchange_now(model: Module) -> None:
    """Average the gradients of a window that ended on a micro-batch whose backward exchanged nothing."""
    if isinstance(model, DistributedDataParallel):
        reduce_gradients(list(model.parameters()), group=model.process_group, average=True)

"""The repeated blocks of a model, and marks in the log where each of them begins and ends.

Blocks of one kind cost the same, so two models of 2 and 3 blocks tell what one of 32 needs. To line up logs of
unequal depth, each part of a step (before the blocks, a block, after them; forward and backward) gets a mark.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from onyx.memory.footprint.live_bytes import Counter


def find_blocks(model: nn.Module, depth: int | None = None) -> list[nn.Module]:
    """The list of modules that holds most parameters; of length `depth` when that is given."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    lists = [each for each in lists if len(each) == depth or (depth is None and len(each) > 0)]
    best = max(lists, key=lambda each: sum(p.numel() for p in each.parameters()), default=None)
    return list(best) if best is not None else []


def period(model: nn.Module, blocks: list[nn.Module], kinds: list[str] | None = None) -> int | None:
    """The number of blocks after which their kinds repeat (2 for a, b, a, b); None if they do not repeat."""
    signs = [
        (
            type(block).__name__,
            kinds[i] if kinds else "",
            tuple((n, tuple(p.shape), p.dtype) for n, p in block.named_parameters()),
        )
        for i, block in enumerate(blocks)
    ]
    for step in range(1, len(signs) // 2 + 1):
        if all(signs[i] == signs[i - step] for i in range(step, len(signs))):
            return step
    return None


class Parts:
    """Marks in the counter's log which part of the step runs."""

    def __init__(self, counter: Counter, depth: int) -> None:
        self._counter = counter
        self._depth = depth
        self._number = 0
        self._forward = False

    @contextlib.contextmanager
    def micro_batch(self, number: int) -> Iterator[None]:
        """Marks the beginning of a micro-batch."""
        self._number = number
        self._forward = True
        self.enter("forward before")
        yield

    def backward(self) -> None:
        """Forward is over."""
        self._forward = False
        self.enter("backward after")

    def enter(self, part: str) -> None:
        """From here on the log belongs to `part`."""
        self._counter.mark(f"{self._number} {part}")

    def block_begins(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a block's forward. A block that is run again in backward (checkpointing) begins nothing."""
        if not self._forward:
            return
        self.enter(f"forward block {index}")
        given = _tensor(args) if args else _tensor(tuple(kwargs.values()))
        if index == 0 and given is not None and given.requires_grad:
            given.register_hook(lambda _: self.enter("backward before"))

    def block_ends(self, index: int, result: Any) -> None:
        """After a block's forward: its backward begins when the gradient of its result is there."""
        if not self._forward:
            return
        if index == self._depth - 1:
            self.enter("forward after")
        given = _tensor(result)
        if given is not None and given.requires_grad:
            given.register_hook(lambda _: self.enter(f"backward block {index}"))


@contextlib.contextmanager
def mark_blocks(model: nn.Module, counter: Counter) -> Iterator[Parts]:
    """Hooks that mark the blocks of a model while it is probed."""
    blocks = find_blocks(model)
    parts = Parts(counter, len(blocks))
    hooks = []
    for index, block in enumerate(blocks):
        hooks.append(
            block.register_forward_pre_hook(
                lambda _, args, kwargs, i=index: parts.block_begins(i, args, kwargs), with_kwargs=True
            )
        )
        hooks.append(block.register_forward_hook(lambda _, args, result, i=index: parts.block_ends(i, result)))
    try:
        yield parts
    finally:
        for hook in hooks:
            hook.remove()


def _tensor(value: Any) -> torch.Tensor | None:
    """The first floating tensor in a block's arguments or result."""
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, list | tuple):
        return next((each for each in value if isinstance(each, torch.Tensor) and each.is_floating_point()), None)
    return None

"""Counts the bytes of live tensors, real or fake, by following their storages.

Every operation passes through a dispatch mode, which notes new storages and is notified when each of
them is freed. So views count once, what autograd saves counts as long as autograd holds it, and nothing depends on
an allocator. What a kernel allocates and frees inside itself is not seen: that belongs to the overhead.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Counter(TorchDispatchMode):
    """The log of all allocations (+ bytes) and releases (- bytes) while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log: list[int] = []
        self.marks: list[tuple[int, str]] = []
        self.live = 0
        self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._done = False

    def mark(self, name: str) -> None:
        """From here on the log belongs to the part of the step called `name`."""
        self.marks.append((len(self.log), name))

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that were made before the counter."""
        for tensor in tensors:
            self._note(tensor)

    def stop(self) -> None:
        """Log no later releases."""
        self._done = True

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()

        def released(_: object) -> None:
            self._seen.pop(key, None)
            if not self._done:
                self._add(-size)

        self._seen[key] = weakref.ref(storage, released)
        self._add(size)

    def _add(self, size: int) -> None:
        if size:
            self.log.append(size)
            self.live += size
            self.peak = max(self.peak, self.live)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and count the storages that it returns."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self._note(result)
        elif isinstance(result, list | tuple):
            self.hold(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

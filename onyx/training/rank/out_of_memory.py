"""Running out of memory: free it, choose a smaller budget, detect thrashing, measure the peak."""

import gc

import torch

from onyx.accumulation.boundary import clear
from onyx.memory.devices.heap import trim_heap
from onyx.memory.devices.peak_memory import Watermark
from onyx.training.contract.attempt import Share
from onyx.training.contract.errors import UserError
from onyx.training.contract.spec import TrainingSpec


def free_memory(parameters: list[torch.nn.Parameter]) -> None:
    """Drop gradients and release unused memory. Call it outside of `except`: a traceback keeps tensors alive."""
    clear(parameters)
    gc.collect()
    trim_heap()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def smaller_budget(budget: int, *, samples: int, length: int) -> int | None:
    """The budget after a micro-batch of `samples` × `length` tokens did not fit; None when there is no finer cut.

    At most half of what was tried, down to one sample per micro-batch.
    """
    if samples > 1:
        return min(budget, samples * length) // 2
    return length if length < budget else None


class ThrashDetector:
    """Detects an allocator that retries in two windows in a row: training slows down before memory runs out."""

    def __init__(self) -> None:
        self._retries: int | None = None
        self._rises = 0

    def detect(self, retries: int | None) -> bool:
        """Whether to cut finer, given the allocator's count of retries (None where it has no count)."""
        if retries is None:
            return False
        rose = self._retries is not None and retries > self._retries
        self._retries = retries
        self._rises = self._rises + 1 if rose else 0
        if self._rises < 2:
            return False
        self._rises = 0
        return True


def allocator_retries(device: torch.device) -> int | None:
    if device.type == "cpu":
        return None
    return int(torch.accelerator.memory_stats(device).get("num_alloc_retries", 0))


_watermarks: list[Watermark] = []
"""At most one. Like the kernel's high-water mark it belongs to the process."""


def watch_memory(held: int) -> None:
    """Call it when model and optimizer state, `held` bytes, are allocated and no forward has run."""
    _watermarks[:] = [Watermark.begin(held)]


def peak_bytes(device: torch.device) -> int:
    """The most that this process has allocated on its device, as the plan counts; on the CPU since `watch_memory`."""
    if device.type == "cpu":
        return _watermarks[-1].peak() if _watermarks else 0
    return int(torch.accelerator.max_memory_allocated(device))


def does_not_fit(length: int, share: Share, spec: TrainingSpec) -> UserError:
    """One sample alone does not fit: the error names what a user can change. A pair counts both its padded answers."""
    what = "one sample" if spec.objective == "sft" else "one pair of answers"
    length = length if spec.objective == "sft" else length // 2
    ways = [f"max_length below {length}"]
    if not spec.gradient_checkpointing:
        ways.append("gradient_checkpointing true")
    if spec.method == "full":
        ways.append('method "lora"')
    has = f" with {share.memory_bytes / 2**20:,.0f} MB" if share.memory_bytes else ""
    return UserError(
        "out_of_memory",
        f"a micro-batch of {what} of {length} tokens does not fit on {share.device}{has}: "
        f"try {', '.join(ways)}, or a larger device",
        param="data.max_length",
    )

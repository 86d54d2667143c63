"""Running out of memory: how to give it back, and how much less to ask for."""

import gc

import torch

from onyx.accumulation.boundary import clear
from onyx.memory.devices.heap import trim_heap
from onyx.memory.devices.peak_memory import Watermark
from onyx.training.contract.attempt import Share
from onyx.training.contract.errors import UserError
from onyx.training.contract.spec import TrainingSpec


def free_memory(parameters: list[torch.nn.Parameter]) -> None:
    """Drop gradients and give back what can be given back. Call it outside of `except`: a traceback pins tensors."""
    clear(parameters)
    gc.collect()
    trim_heap()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def smaller_budget(budget: int, *, samples: int, length: int) -> int | None:
    """The budget after a micro-batch of `samples` × `length` tokens did not fit; None when there is no finer cut.

    At least half of what was tried, down to samples that run alone.
    """
    if samples > 1:
        return min(budget, samples * length) // 2
    return length if length < budget else None


class ThrashDetector:
    """An allocator that frees and tries again on two windows in a row: speed collapses before memory runs out."""

    def __init__(self) -> None:
        self._retries: int | None = None
        self._rises = 0

    def seen(self, retries: int | None) -> bool:
        """Whether it is time to shrink, given the allocator's count of retries (None where there is none)."""
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
"""Of this process, as the kernel's high-water mark is: the last one counts."""


def watch_memory(held: int) -> None:
    """Call it when the model and the optimizer's state, `held` bytes, are there and nothing has run."""
    _watermarks[:] = [Watermark.begin(held)]


def peak_bytes(device: torch.device) -> int:
    """The most that this process has held on its device: on the CPU since `watch_memory`, in the plan's terms."""
    if device.type == "cpu":
        return _watermarks[-1].peak() if _watermarks else 0
    return int(torch.accelerator.max_memory_allocated(device))


def does_not_fit(length: int, share: Share, spec: TrainingSpec) -> UserError:
    """One sample alone is too much: what a user can change. A pair is as long as both its padded answers."""
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

"""The C library's heap in a training process on the CPU.

glibc learns from every large block that is freed, and soon serves blocks of up to 32 MB from a heap that it cannot give
back in parts: measured 1.03 to 2.2 times the live tensors, another figure for every model. With a fixed threshold each
large tensor is a mapping of its own that goes back to the system when it is freed, so that what the planner counts is
what the process takes, and memory that is freed after running out can be had again.

That costs time: the kernel zeroes new pages for every tensor (measured: 5 million page faults where a heap
that keeps everything has 0.2 million, and 1.4 to 1.6 times the time of a step). So where memory is plenty, the heap is
a roomy one: nothing goes back to the system, however many holes it has.
"""

import ctypes
import sys
from typing import Any

M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4

THRESHOLD = 128 * 1024
"""Blocks from here on are mappings of their own: glibc's first value, before it learns."""

NEVER = 2**31 - 1
"""The largest threshold that mallopt takes: only more free bytes than this go back to the system."""

PAD = 32 * 2**20
"""By how much more than it needs the heap grows at once."""

FRAGMENTED = 2.5
"""Times the bytes of live tensors that a roomy heap may come to take (measured: 1.03 to 2.2)."""


def steady_heap(threshold: int = THRESHOLD) -> bool:
    """Fix the threshold for this process, before the weights are made. False where the C library is not glibc."""
    mallopt = _function("mallopt")
    # Setting either of the two also ends the learning.
    return (
        mallopt is not None
        and bool(mallopt(M_MMAP_THRESHOLD, threshold))
        and bool(mallopt(M_TRIM_THRESHOLD, threshold))
    )


def roomy_heap() -> bool:
    """Keep what is freed for the tensors to come. False where the C library is not glibc."""
    mallopt = _function("mallopt")
    return (
        mallopt is not None
        and bool(mallopt(M_MMAP_MAX, 0))
        and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
        and bool(mallopt(M_TOP_PAD, PAD))
    )


def trim_heap() -> bool:
    """Give free memory back to the system. False where the C library is not glibc."""
    trim = _function("malloc_trim")
    return trim is not None and bool(trim(0))


def free_in_heap() -> int:
    """Bytes that this process freed and its heap kept; 0 where the C library is not glibc.

    A fork inherits them as holes, and fills these before it maps anything, whatever its threshold.
    """
    mallinfo = _function("mallinfo2")
    if mallinfo is None:
        return 0
    mallinfo.restype = _MallInfo
    return int(mallinfo().fordblks)


class _MallInfo(ctypes.Structure):
    """The C library's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _function(name: str) -> Any:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)

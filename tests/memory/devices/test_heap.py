from collections.abc import Callable

import pytest
import torch

from onyx.memory.devices.heap import free_in_heap, roomy_heap, steady_heap, trim_heap
from onyx.memory.footprint.calibrate import growth, in_fork

SIZE = 100 * 2**20


def test_what_is_freed_goes_back_at_once() -> None:
    """Sizes change from turn to turn, as they do with samples of unequal length: a heap would grow with the turns."""

    def work() -> None:
        assert steady_heap()
        for i in range(10):
            tensors = [torch.ones(SIZE // 40 + 99_991 * ((i + j) % 7), dtype=torch.uint8) for j in range(40)]
            del tensors

    assert growth(work) < 1.25 * (SIZE + 40 * 99_991 * 3)


def test_a_child_that_fails_raises_its_error_in_the_parent() -> None:
    def work() -> None:
        raise ValueError("no such thing")

    with pytest.raises(RuntimeError, match="ValueError: no such thing"):
        growth(work)


def test_growth_sees_memory_that_is_touched() -> None:
    def work() -> None:
        held = torch.ones(SIZE, dtype=torch.uint8)
        del held

    assert 0.99 * SIZE <= growth(work) < 1.25 * SIZE


def test_trimming_is_harmless() -> None:
    trim_heap()
    assert torch.ones(10).sum() == 10


def free_bytes(ready: Callable[[], bool]) -> tuple[int, int]:
    """Bytes that the heap has free before and after tensors came and went, in a fork of its own."""

    def work() -> str:
        assert ready()
        before = free_in_heap()  # holes that this process left: tensors take them first
        for _ in range(3):
            tensors = [torch.ones(SIZE // 40, dtype=torch.uint8) for _ in range(40)]
            del tensors
        return f"{before} {free_in_heap()}"

    before, after = in_fork(work).split()
    return int(before), int(after)


def test_a_roomy_heap_keeps_what_is_freed() -> None:
    """What is kept comes without page faults. The C library counts it: page faults depend on the host."""
    before, after = free_bytes(steady_heap)
    assert after < before + SIZE // 40
    _, after = free_bytes(roomy_heap)
    assert after > 0.99 * SIZE

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


def kept(ready: Callable[[], bool]) -> int:
    """Bytes that the heap keeps of tensors that were freed, in a fork of its own."""

    def work() -> str:
        assert ready()
        before = free_in_heap()
        for _ in range(3):
            tensors = [torch.ones(SIZE // 40, dtype=torch.uint8) for _ in range(40)]
            del tensors
        return str(free_in_heap() - before)

    return int(in_fork(work))


def test_a_roomy_heap_keeps_what_is_freed() -> None:
    """What is kept comes without page faults. The C library counts it: page faults depend on the host."""
    assert kept(steady_heap) < SIZE // 40
    assert kept(roomy_heap) > 0.99 * SIZE

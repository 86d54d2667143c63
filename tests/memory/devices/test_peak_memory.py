"""The most that a process took since it held its model."""

from onyx.memory.devices.peak_memory import Watermark
from onyx.memory.footprint.calibrate import in_fork

MIB = 2**20


def peak_of(held: int, taken: int) -> int:
    """In a process of its own, which lets go of what it took before it looks."""

    def work() -> str:
        mark = Watermark.begin(held)
        block = bytearray(b"x") * taken
        del block
        return str(mark.peak())

    return int(in_fork(work))


def test_it_remembers_what_was_given_back() -> None:
    assert 63 * MIB < peak_of(0, 64 * MIB) < 72 * MIB  # the kernel counts in batches of pages


def test_what_was_held_before_is_counted_in() -> None:
    assert 1000 * MIB <= peak_of(1000 * MIB, MIB) < 1010 * MIB

from pathlib import Path

from onyx.jobs.playground.capacity import spare_memory, spare_threads
from onyx.memory.devices.cpu import cpu_cores
from onyx.settings import Settings

GB = 2**30
NEAR = GB
"""Other processes on this host take and free memory between two measurements."""


def test_a_lent_slice_counts_in_full(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, cpu_memory="400GB", cpu_devices=4)
    free = spare_memory(settings, ())
    assert free > 0
    assert abs(spare_memory(settings, {"cpu:0", "cpu:3"}) - (free - 200 * GB)) < NEAR
    assert abs(spare_memory(settings, {"GPU-1234"}) - free) < NEAR  # a GPU has memory of its own


def test_one_thread_beside_a_training(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert spare_threads(settings, ()) == cpu_cores()
    assert spare_threads(settings, {"cpu:0"}) == 1
    assert spare_threads(settings, {"GPU-1234"}) == 1

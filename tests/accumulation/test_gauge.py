import mmap

import psutil
import torch

from onyx.accumulation.gauge import Gauge, own_bytes, peak_bytes, read_gauge

CPU = torch.device("cpu")


def test_the_cpu_is_read_from_the_system() -> None:
    gauge = read_gauge(CPU)
    assert gauge.total == psutil.virtual_memory().total
    assert 0 < gauge.own < gauge.total
    assert 0 < gauge.pressure < 1


def test_own_bytes_grow_with_the_tensors_of_the_process() -> None:
    before = own_bytes(CPU)
    pages = mmap.mmap(-1, 32 << 20)  # new pages: a tensor could take what this process has freed
    held = torch.frombuffer(pages, dtype=torch.uint8).fill_(1)
    assert own_bytes(CPU) - before > 16 << 20
    assert peak_bytes(CPU) >= before
    assert held.sum() > 0


def test_pressure_is_of_the_whole_device_not_of_our_peak() -> None:
    assert Gauge(own=1, used=80, total=100).pressure == 0.8

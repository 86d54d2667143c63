"""What every test shares: one torch thread per process and fixed seeds."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: it is read once
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("onyx", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("onyx")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)

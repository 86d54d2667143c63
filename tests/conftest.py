"""What every test shares: one torch thread per process, fixed seeds, and the planner's measurements of this machine."""

import os
import shutil
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: it is read once
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from tests.planner_cache import SHARED

torch.set_num_threads(1)
settings.register_profile("onyx", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("onyx")


def pytest_configure(config: pytest.Config) -> None:
    """One directory of measurements for all processes of a test run: workers inherit the environment."""
    if SHARED not in os.environ:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="onyx-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(SHARED)))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)

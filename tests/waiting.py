"""How tests wait: for a condition, never for a time."""

import time
from collections.abc import Callable

PATIENCE = 600.0
"""Seconds after which a test that waits has failed: a guard against hangs. No test fails by being slower than usual."""


def wait_for(condition: Callable[[], bool], what: str, patience: float | None = None) -> None:
    """Poll until the condition holds; AssertionError with these words when it does not in time."""
    deadline = time.monotonic() + (PATIENCE if patience is None else patience)
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)

"""What the planner measures on this machine, once for a whole test run: each home would take seconds for it."""

import os
from pathlib import Path

from onyx.memory.footprint.overhead import Overhead

SHARED = "ONYX_TESTS_MEASURED"
"""The environment variable with the run's own directory. Made by tests/conftest.py, and gone with the run."""

KINDS = ("footprints", "overheads", "trials")
"""Not the timings: one test's jobs must not change another test's plan."""

KNOWN_CPU = Overhead(fixed=24 * 2**20, slack=1.02, fixed_high=36 * 2**20, slack_high=1.05, measured=True)
"""For tests that must not depend on this machine's overhead."""


def share_planner_cache(home: Path) -> None:
    """Let this home use what the planner has measured on this machine."""
    (home / "cache").mkdir(mode=0o700, parents=True, exist_ok=True)
    for kind in KINDS:
        shared = Path(os.environ[SHARED]) / kind
        shared.mkdir(mode=0o700, exist_ok=True)
        if not (home / "cache" / kind).exists():
            (home / "cache" / kind).symlink_to(shared)

"""How far Onyx's processes step back, for what answers requests on the same cores, and in which order."""

import os

FORK_SERVER = 5
"""It imports torch, which takes seconds of a core: a service that starts beside it is ready first."""

HELPER = 10
"""Preparing a job and planning: a client may wait for the plan, and requests still go first."""

RANK = 19
"""Beside two ranks on two cores an answer took up to 90 ms at 10."""

CHAT = 19
"""Trainings come first, and there is no place behind theirs."""

TRACKER = 19
"""Nothing waits for it."""


def step_back(niceness: int) -> None:
    """Run at this niceness. It is not added to the parent's, but one that is larger stays: it cannot be taken back."""
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))

"""What a launcher and its children agree on: priority, the signal to stop, and the lifeline. Needs no torch."""

import contextlib
import os
import select
import signal
import sys
import threading
from enum import IntEnum
from types import FrameType


class Niceness(IntEnum):
    """Processes that answer requests on the same cores go first. The values put the others in order."""

    FORK_SERVER = 5
    """It imports torch, which takes seconds of a core: a service that starts at the same time is ready first."""

    HELPER = 10
    """Preparing and planning: a client may wait for the plan, but requests go first."""

    RANK = 19
    """At 10, beside two ranks on two cores, a request took up to 90 ms."""

    CHAT = 19
    """Training goes first, and 19 is the largest value."""

    TRACKER = 19
    """Nothing waits for it."""


def lower_priority(niceness: int) -> None:
    """Run at this niceness, or at the inherited one if that is larger: an unprivileged process cannot lower it."""
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))


class StopFlag:
    """Set by SIGTERM. The rank then drops its unfinished window, saves the last finished update and exits."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> "StopFlag":
        signal.signal(signal.SIGTERM, self._request)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner handles Ctrl-C in a terminal
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


LIFELINE = "ONYX_LIFELINE_FD"
"""The environment variable in which a launcher names the file descriptor of a child's lifeline."""


def watch_inherited_lifeline(silence: float) -> None:
    """Watch the lifeline that LIFELINE names. A process started by hand has none."""
    if descriptor := os.environ.get(LIFELINE):
        watch_lifeline(int(descriptor), silence)


def watch_lifeline(descriptor: int, silence: float) -> threading.Thread:
    """Exit at end of file, or after `silence` seconds without a byte. A thread does it, so training never waits."""
    thread = threading.Thread(target=_watch, args=(descriptor, silence), name="lifeline", daemon=True)
    thread.start()
    return thread


def _watch(descriptor: int, silence: float) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    buffer = bytearray(4096)
    alive = True
    while alive:
        # Training may have used up the memory for a moment: then look again.
        with contextlib.suppress(MemoryError):
            alive = bool(poll.poll(silence * 1000)) and os.readv(descriptor, [buffer]) > 0
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), b"the runner is gone: leaving\n")
    os._exit(1)

"""Being told to stop: a flag that everything which takes time looks at."""

import contextlib
import os
import select
import signal
import sys
import threading
from types import FrameType


class Stop:
    """Set by SIGTERM. The rank then drops its share, saves the last finished update and leaves."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> "Stop":
        signal.signal(signal.SIGTERM, self._request)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the runner's to handle
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


LIFELINE = "ONYX_LIFELINE_FD"
"""The environment variable in which a launcher names the descriptor of a child's lifeline."""


def watch_inherited(silence: float) -> None:
    """Watch the lifeline that the launcher has handed down. A process that was started by hand has none."""
    if descriptor := os.environ.get(LIFELINE):
        watch(int(descriptor), silence)


def watch(descriptor: int, silence: float) -> threading.Thread:
    """Exit at the end of the file, or when nothing came for `silence` seconds. Training never waits for it."""
    thread = threading.Thread(target=_watch, args=(descriptor, silence), name="lifeline", daemon=True)
    thread.start()
    return thread


def _watch(descriptor: int, silence: float) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    buffer = bytearray(4096)
    alive = True
    while alive:
        # Training may be at the end of its memory just now; the lifeline then looks again.
        with contextlib.suppress(MemoryError):
            alive = bool(poll.poll(silence * 1000)) and os.readv(descriptor, [buffer]) > 0
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), b"the runner is gone: leaving\n")
    os._exit(1)

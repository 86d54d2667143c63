"""The lifeline: a pipe whose other end the runner holds. When the runner goes, its ranks go.

A parent-death signal would not do: a rank's parent is the template.
"""

import contextlib
import os
import select
import sys
import threading

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

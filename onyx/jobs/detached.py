"""Starting a process that shall outlive this one."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_started: set[int] = set()


def spawn_detached(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start it in a session of its own, with its output in a log; its pid.

    Nobody here waits for it: that a former one has ended is noticed when the next one is started.
    """
    reap()
    files = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    )
    pid = os.posix_spawn(command[0], list(command), dict(environment), file_actions=files, setsid=True)
    _started.add(pid)
    return pid


def is_running(pid: int) -> bool:
    """Whether one that was started here has not ended."""
    reap()
    return pid in _started


def reap() -> None:
    """Let go of those that have ended."""
    for pid in tuple(_started):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            ended = pid
        if ended:
            _started.discard(pid)

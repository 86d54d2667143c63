"""The embedded runner: started beside whoever wants one, once per home and host. Imports little: it can be early."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from onyx.jobs.runner import client_presence as companions
from onyx.jobs.runner.main import NAME
from onyx.jobs.runner.runner_lock import is_locked, locked_by
from onyx.settings import Settings

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


_started_embedded: dict[Path, int] = {}
_starting = threading.Lock()


def start_runner(settings: Settings) -> None:
    """Start one, unless one holds the lock or is about to. It outlives this process."""
    companions.join(settings.run_dir)  # before the look: a runner that is about to leave sees it and stays
    with _starting:
        if is_locked(settings.run_dir) or starting(settings.run_dir) is not None:
            return
        command = (sys.executable, "-m", "onyx.jobs.runner.main", "--embedded")
        log = settings.run_dir / NAME
        _started_embedded[settings.run_dir] = spawn_detached(command, os.environ | settings.environment(), log)


def starting(run_dir: Path) -> int | None:
    """The pid of one that this process started and that has not ended."""
    pid = _started_embedded.get(run_dir)
    return pid if pid is not None and is_running(pid) else None


class RunnerProcess:
    """A process that can be told to stop. It is named by a descriptor: a pid could be somebody else's by now."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def stop(self) -> None:
        """Ranks save, their jobs go back to the queue, and it leaves."""
        signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    async def gone(self, seconds: float) -> bool:
        """Whether it has ended within this time."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._descriptor)
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def find_runner(run_dir: Path, starting: int | None = None) -> RunnerProcess | None:
    """The embedded runner of this home, or the child `starting` that has not got as far as the lock.

    A runner that is a unit of its own is not its neighbour's to stop.
    """
    runner = locked_by(run_dir)
    if runner is not None and not runner.embedded:
        return None
    pid = runner.pid if runner is not None else starting
    try:
        return RunnerProcess(pid) if pid is not None else None
    except ProcessLookupError:
        return None

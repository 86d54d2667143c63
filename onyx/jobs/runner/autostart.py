"""The embedded runner, as its clients see it: they start it, keep it alive by being there, find it and stop it.

A client is an API process or a script that opened the home on this host. Imports little, so that clients start fast.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from onyx.jobs.process_identity import ProcessIdentity, this_process
from onyx.jobs.runner.runner_lock import is_locked, locked_by
from onyx.settings import Settings

LOG_NAME = "runner.log"
_CLIENTS = "clients"
_OUTPUTS = (1, 2)

_children: set[int] = set()
"""Processes that this one started detached and that have not ended."""

_runners: dict[Path, int] = {}
"""By run directory: the embedded runner that this process started last."""

_starting = threading.Lock()


def start_runner(settings: Settings) -> None:
    """Start an embedded runner, unless one runs or is starting. It outlives this process."""
    register_client(settings.run_dir)  # before the look at the lock: a runner that is about to leave sees it and stays
    with _starting:
        if is_locked(settings.run_dir) or starting(settings.run_dir) is not None:
            return
        command = (sys.executable, "-m", "onyx.jobs.runner", "--embedded")
        log = settings.run_dir / LOG_NAME
        _runners[settings.run_dir] = spawn_detached(command, os.environ | settings.environment(), log)


def starting(run_dir: Path) -> int | None:
    """The pid of the runner that this process started, unless it has ended."""
    pid = _runners.get(run_dir)
    return pid if pid is not None and is_running(pid) else None


def register_client(run_dir: Path) -> None:
    """Leave a file that names this process: an embedded runner stays while a client lives.

    The process never removes the file: the runner sees when the process is dead, and then removes it.
    """
    here = this_process()
    mark = run_dir / _CLIENTS / f"{here.host}:{here.boot}:{here.pid}:{here.started}"
    if not mark.exists():
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def living_clients(run_dir: Path) -> list[ProcessIdentity]:
    """Clients on this host that still run. Files of dead ones are removed; those of other hosts stay."""
    here = this_process()
    found = []
    for mark in sorted((run_dir / _CLIENTS).glob("*")):
        client = _client(mark.name)
        if client is None or client.is_dead(here):
            mark.unlink(missing_ok=True)
        elif client.host == here.host:
            found.append(client)
    return found


def other_clients(run_dir: Path) -> list[ProcessIdentity]:
    """Living clients without this process."""
    return [client for client in living_clients(run_dir) if client != this_process()]


def _client(name: str) -> ProcessIdentity | None:
    parts = name.rsplit(":", 3)
    if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return ProcessIdentity(host=parts[0], boot=parts[1], pid=int(parts[2]), started=int(parts[3]))


class RunnerProcess:
    """A runner that can be stopped. It is held by a descriptor: its pid could be reused by another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def stop(self) -> None:
        """Its ranks save, their jobs go back to the queue, and it exits."""
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
    """The embedded runner of this home, or the child `starting` that does not hold the lock yet.

    None for a runner that an operator started: clients must not stop it.
    """
    runner = locked_by(run_dir)
    if runner is not None and not runner.embedded:
        return None
    pid = runner.pid if runner is not None else starting
    try:
        return RunnerProcess(pid) if pid is not None else None
    except ProcessLookupError:
        return None


def spawn_detached(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start a process in its own session, with its output in a log; its pid.

    Nothing waits for it: that it has ended is noticed when the next one is started or `is_running` is called.
    """
    _reap()
    files = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    )
    pid = os.posix_spawn(command[0], list(command), dict(environment), file_actions=files, setsid=True)
    _children.add(pid)
    return pid


def is_running(pid: int) -> bool:
    """Whether a process that `spawn_detached` started here has not ended."""
    _reap()
    return pid in _children


def _reap() -> None:
    """Forget children that have ended."""
    for pid in tuple(_children):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            ended = pid
        if ended:
            _children.discard(pid)


def runner_log(settings: Settings) -> logging.Handler | None:
    """In a runner whose standard error is the log that `start_runner` opened: what rotates it. None in any other."""
    path = settings.run_dir / LOG_NAME
    if not path.exists() or not os.path.samestat(os.fstat(2), path.stat()):
        return None
    return RunnerLog(path, maxBytes=settings.log_bytes, backupCount=settings.log_files)


class RunnerLog(RotatingFileHandler):
    """Rotates by size. Standard output and error follow to the new file: a crash writes there past logging."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        for output in _OUTPUTS:
            os.dup2(stream.fileno(), output)
        return stream

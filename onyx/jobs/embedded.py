"""The embedded runner: started beside whoever wants one, once per home and host. Imports little: it can be early."""

import os
import sys
import threading
from pathlib import Path

from onyx.jobs import companions
from onyx.jobs.detached import is_running, spawn_detached
from onyx.jobs.lock import is_locked
from onyx.jobs.runner_log import NAME
from onyx.settings import Settings

_started: dict[Path, int] = {}
_starting = threading.Lock()


def start_runner(settings: Settings) -> None:
    """Start one, unless one holds the lock or is about to. It outlives this process."""
    companions.join(settings.run_dir)  # before the look: a runner that is about to leave sees it and stays
    with _starting:
        if is_locked(settings.run_dir) or starting(settings.run_dir) is not None:
            return
        command = (sys.executable, "-m", "onyx.jobs.runner", "--embedded")
        log = settings.run_dir / NAME
        _started[settings.run_dir] = spawn_detached(command, os.environ | settings.environment(), log)


def starting(run_dir: Path) -> int | None:
    """The pid of one that this process started and that has not ended."""
    pid = _started.get(run_dir)
    return pid if pid is not None and is_running(pid) else None

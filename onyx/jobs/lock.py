"""The lock of the one runner that a home has on a host, and what it says of its holder."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from onyx.jobs.holder import this_process
from onyx.jobs.private import close_directory, private_directory


@dataclass(frozen=True, kw_only=True)
class LockedBy:
    """The runner that holds the lock."""

    pid: int
    started: int
    """As in Holder."""

    embedded: bool
    """Started by an API process or a script, for as long as one lives; not a unit of its own."""


def lock_path(run_dir: Path) -> Path:
    """The file that the runner of this home on this host keeps locked."""
    return run_dir / f"runner-{this_process().host}.lock"


@contextlib.contextmanager
def only_one(run_dir: Path, *, embedded: bool) -> Iterator[bool]:
    """Whether this is the only runner that was started for its home on this host; the lock lasts as long as it does."""
    private_directory(run_dir.parent)
    close_directory(run_dir)
    with lock_path(run_dir).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        here = this_process()
        lock.truncate(0)
        lock.write(json.dumps(asdict(LockedBy(pid=here.pid, started=here.started, embedded=embedded))))
        lock.flush()
        yield True


def is_locked(run_dir: Path) -> bool:
    """Whether a runner that was started for this home lives on this host."""
    try:
        with lock_path(run_dir).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def locked_by(run_dir: Path) -> LockedBy | None:
    """Who holds the lock; None when nobody does, or one that has not said yet who it is."""
    if not is_locked(run_dir):
        return None
    with contextlib.suppress(OSError, ValueError, TypeError):
        return LockedBy(**json.loads(lock_path(run_dir).read_text()))
    return None

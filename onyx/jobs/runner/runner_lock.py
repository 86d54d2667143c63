"""The lock of a home's one runner on this host. The locked file says which process holds it."""

import contextlib
import fcntl
import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from onyx.jobs.files import close_directory, private_directory
from onyx.jobs.process_identity import this_process

_WHOLE_FILE = struct.Struct("hhqqi0q")
"""C's `struct flock`: type, whence, start, length (0: to the end), pid (0: the lock is an open file's own)."""


@dataclass(frozen=True, kw_only=True)
class LockedBy:
    """The runner that holds the lock."""

    pid: int
    started: int
    """As in ProcessIdentity."""

    embedded: bool
    """Started by a client process, and stays as long as one lives. False for one that an operator started."""


def lock_path(run_dir: Path) -> Path:
    """The file that the runner of this home on this host keeps locked."""
    return run_dir / f"runner-{this_process().host}.lock"


@contextlib.contextmanager
def only_one(run_dir: Path, *, embedded: bool) -> Iterator[bool]:
    """Take the lock until the block ends; whether it was free."""
    private_directory(run_dir.parent)
    close_directory(run_dir)
    with lock_path(run_dir).open("a") as lock:
        try:
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _WHOLE_FILE.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
        except OSError:
            yield False
            return
        here = this_process()
        lock.truncate(0)
        lock.write(json.dumps(asdict(LockedBy(pid=here.pid, started=here.started, embedded=embedded))))
        lock.flush()
        yield True


def is_locked(run_dir: Path) -> bool:
    """Whether a runner of this home lives on this host.

    The kernel says whether a lock would conflict. Taking the lock to find out would keep out a runner that starts.
    """
    try:
        with lock_path(run_dir).open("rb") as lock:
            found = fcntl.fcntl(lock, fcntl.F_OFD_GETLK, _WHOLE_FILE.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    kind, *_ = _WHOLE_FILE.unpack(found)
    return bool(kind != fcntl.F_UNLCK)


def locked_by(run_dir: Path) -> LockedBy | None:
    """The runner that holds the lock; None if the lock is free, or its holder has not written its name yet."""
    if not is_locked(run_dir):
        return None
    with contextlib.suppress(OSError, ValueError, TypeError):
        return LockedBy(**json.loads(lock_path(run_dir).read_text()))
    return None

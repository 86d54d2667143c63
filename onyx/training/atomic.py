"""Files and directories that are whole or not there. Needs no torch."""

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

STALE_SECONDS = 86_400.0
"""A temporary directory that is older belongs to nobody: no maker takes a day."""


def write_text(path: Path, text: str) -> None:
    """Write a file beside its name and move it there when it is on the disk."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_directory(path.parent)


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """The directory `target`, which `make` fills when it is not there yet.

    Whoever comes second waits for the first and takes its work. Where locks do not reach (some network file systems)
    both work, and the first rename wins.
    """
    if target.is_dir():
        with contextlib.suppress(OSError):
            os.utime(target)  # still in use: whoever clears away goes by that
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.with_name(f".{target.name}.lock")):
        if not target.is_dir():
            _remove_stale(target.parent)
            _make(target, make)
    return target


def sync_directory(path: Path) -> None:
    """Names live in the directory: a rename is durable when the directory is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make(target: Path, make: Callable[[Path], None]) -> None:
    part = target.with_name(f".part-{target.name}-{uuid.uuid4().hex}")
    part.mkdir()
    try:
        make(part)
        _sync_tree(part)
        _rename(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    sync_directory(target.parent)


def _rename(part: Path, target: Path) -> None:
    try:
        part.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _sync_tree(root: Path) -> None:
    for path in sorted(root.rglob("*")):
        if path.is_dir():
            sync_directory(path)
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_directory(root)


def _remove_stale(parent: Path) -> None:
    for path in parent.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    # The file stays: removing it while somebody waits for it would give two owners.
    with path.open("ab") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

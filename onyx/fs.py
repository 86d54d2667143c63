"""Files and directories that are there as a whole or not at all: written beside their name, then renamed.

The one place in Onyx that does this. Every temporary name is new, so two processes that write the same path never write
into each other's file: the later rename wins. `durable` waits for the disk before and after the rename, for what must
survive a power cut; without it a killed process still leaves the old content or the new.

A killed process leaves temporary names behind; `sweep` removes them. Nothing beyond the standard library is imported.
"""

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

STALE_SECONDS = 86_400.0
"""An older temporary name belongs to no living process: no writer takes a day."""

_UNIQUE = len(uuid.uuid4().hex)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Make `path` a file with this text (UTF-8)."""
    write_bytes(path, text.encode(), durable=durable)


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Make `path` a file with these bytes."""
    with replace_file(path, durable=durable) as part:
        part.write_bytes(data)


@contextlib.contextmanager
def replace_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`, for the caller to write a file at; then it takes the name. A failure leaves
    the old file."""
    part = _beside(path, "part")
    try:
        yield part
        move_into_place(part, path, durable=durable)
    finally:
        part.unlink(missing_ok=True)


def move_into_place(part: Path, path: Path, *, durable: bool = True) -> None:
    """Give a finished file of the same directory its name, in place of the file that has it."""
    if durable:
        _sync(part)
    part.replace(path)
    if durable:
        sync_directory(path.parent)


@contextlib.contextmanager
def publish_directory(target: Path, *, durable: bool = True, replace: bool = True) -> Iterator[Path]:
    """A temporary directory beside `target`, for the caller to fill; then it takes the name. A failure leaves nothing.

    A directory cannot be renamed onto a full one: with `replace` the old one is moved away first, and a kill at that
    moment leaves neither. Without `replace` a target that is there already is an OSError.
    """
    part = _beside(target, "part")
    part.mkdir(parents=True)
    try:
        yield part
        if durable:
            sync_tree(part)
        if replace and target.exists():
            remove(target)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if durable:
        sync_directory(target.parent)


def make_once(target: Path, make: Callable[[Path], None]) -> Path:
    """The directory `target`, which `make` fills when it is not there yet.

    A second process waits for the first and takes its result. Where locks do not work (some network file systems) both
    make it, and the first rename wins.
    """
    if target.is_dir():
        with contextlib.suppress(OSError):
            os.utime(target)  # marks it as in use: housekeeping deletes what is old
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.with_name(f".{target.name}.lock")):
        if not target.is_dir():
            sweep(target.parent, older_than=STALE_SECONDS)
            _make(target, make)
    return target


def remove(path: Path) -> None:
    """Remove a file or directory. It first loses its name, so that no process reads half a directory."""
    doomed = _beside(path, "gone")
    path.rename(doomed)
    _delete(doomed)


def sweep(parent: Path, *, older_than: float | None = None) -> int:
    """Remove what killed processes left in `parent`; returns how many.

    Half-removed files go at once. With `older_than`, a half-written one is kept until nothing in it has changed for so
    many seconds: a living process may still write it.
    """
    return _sweep([*parent.glob(".*.gone"), *parent.glob(".*.part")], older_than)


def sweep_leftovers_of(target: Path, *, older_than: float | None = None) -> int:
    """`sweep` for the temporary names of one target only: for a directory that holds files of other programs too."""
    return _sweep(temporary_names_of(target), older_than)


def temporary_names_of(target: Path) -> list[Path]:
    """The temporary names of `target` beside it: a process writes or removes it, or was killed while it did."""
    name = glob.escape(target.name)
    hexadecimal = "[0-9a-f]" * _UNIQUE
    return [path for suffix in ("gone", "part") for path in target.parent.glob(f".{name}.{hexadecimal}.{suffix}")]


def _sweep(leftovers: list[Path], older_than: float | None) -> int:
    count = 0
    for leftover in leftovers:
        with contextlib.suppress(OSError):  # another process has removed it
            if (
                older_than is not None
                and leftover.suffix == ".part"
                and time.time() - _last_change(leftover) <= older_than
            ):
                continue
            _delete(leftover)
            count += 1
    return count


def sync_file(file: IO[Any]) -> None:
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk: a rename is durable only then."""
    _sync(path)


def sync_tree(root: Path) -> None:
    """Wait until a directory and all below it are on the disk."""
    for path in sorted(root.rglob("*")):
        _sync(path)
    _sync(root)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _last_change(path: Path) -> float:
    """The latest change in a file or directory tree: a directory's own time ignores files that grow in it."""
    return max(entry.lstat().st_mtime for entry in (path, *path.rglob("*")))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make(target: Path, make: Callable[[Path], None]) -> None:
    try:
        with publish_directory(target, replace=False) as part:
            make(part)
    except OSError as error:
        # Another process has made the same: its lock did not work across hosts.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not target.is_dir():
            raise


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.{suffix}")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    # The file stays: removing it while another process waits for it would give two owners.
    with path.open("ab") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""The marker file that ties ONYX_HOME to its store: a process refuses to work in the home of another store."""

import errno
import os
import uuid
from pathlib import Path

from onyx.fs import sync_directory
from onyx.jobs.errors import WrongHomeError
from onyx.jobs.files import private_directory
from onyx.jobs.store.store import Store
from onyx.settings import Settings

NAME = "marker"

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without hard links."""


async def check_marker(store: Store, settings: Settings) -> None:
    """Raise WrongHomeError if this home is not the store's: the files of its jobs are in another directory."""
    expected = (await store.home_marker()).encode()
    path = settings.home / NAME
    found = _read(path)
    if found is None:
        if not (await store.jobs.list(limit=1)).jobs:
            private_directory(settings.home)
            _write_first(path, expected)  # the first process of a new store chooses this home
        found = _read(path)  # another process may have written it, and created a job, meanwhile
    if found is not None and found != expected and expected.startswith(found):
        _rewrite(path, expected)
        found = _read(path)
    if found != expected:
        raise WrongHomeError(
            f"{settings.home} is not the ONYX_HOME of this store: mount the shared one there, or set ONYX_HOME to it"
        )


def _read(path: Path) -> bytes | None:
    """The marker's content. A power cut can leave it empty, short or padded with zero bytes: those are stripped."""
    try:
        return path.read_bytes().strip(b"\0\n ")
    except FileNotFoundError:
        return None


def _write_first(path: Path, content: bytes) -> None:
    """Write the marker unless there is one. Of several processes, the first wins, and no reader sees half a file."""
    part = _write_part(path, content)
    try:
        os.link(part, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_directory(path.parent)


def _rewrite(path: Path, content: bytes) -> None:
    """Replace a marker that was written only in part."""
    _write_part(path, content).replace(path)
    sync_directory(path.parent)


def _write_part(path: Path, content: bytes) -> Path:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    with part.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return part

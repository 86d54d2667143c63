"""The marker file that ties ONYX_HOME to its store: a process refuses to work in another store's home."""

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
"""How file systems without hard links refuse one."""


async def check_marker(store: Store, settings: Settings) -> None:
    """Refuse to work in a home that is not this store's: its jobs' files are elsewhere."""
    expected = (await store.home_marker()).encode()
    path = settings.home / NAME
    found = _read(path)
    if found is None:
        if not (await store.jobs.list(limit=1)).jobs:
            private_directory(settings.home)
            _write_first(path, expected)  # the first process on a new store: this home is the one
        found = _read(path)  # another process may have written it, and made a job, since the first look
    if found is not None and found != expected and expected.startswith(found):
        _heal(path, expected)
        found = _read(path)
    if found != expected:
        raise WrongHomeError(
            f"{settings.home} is not the ONYX_HOME of this store: mount the shared one, or name it in ONYX_HOME"
        )


def _read(path: Path) -> bytes | None:
    """What the marker says. A power cut can leave it empty, short or ending in zero bytes: those do not count."""
    try:
        return path.read_bytes().strip(b"\0\n ")
    except FileNotFoundError:
        return None


def _write_first(path: Path, content: bytes) -> None:
    """Give the file its name once it is whole. The first of several processes wins."""
    part = _written_beside(path, content)
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


def _heal(path: Path, content: bytes) -> None:
    """Replace a marker of which only a beginning was written."""
    _written_beside(path, content).replace(path)
    sync_directory(path.parent)


def _written_beside(path: Path, content: bytes) -> Path:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    with part.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return part

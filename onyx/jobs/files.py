"""Files that processes on one host share: small typed JSON files, private directories."""

import os
import stat
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from onyx import fs

M = TypeVar("M", bound=BaseModel)


def write_json(path: Path, value: BaseModel, *, durable: bool = True) -> None:
    """A typed value as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fs.write_text(path, value.model_dump_json(), durable=durable)


def read_json(path: Path, kind: type[M]) -> M | None:
    """The value in a file; None when it is not there, or not one."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


UMASK = 0o077
"""For processes that are all Onyx's: nothing they write is for other users of the host."""


def private_directory(path: Path) -> None:
    """Make it, and what is above it, for this user alone. An operator's own directory is left as it is."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def close_directory(path: Path) -> None:
    """The same for a directory that must not be open, whoever made it: whoever gets in may speak to the runner."""
    private_directory(path)
    if stat.S_IMODE(path.stat().st_mode) & UMASK:
        path.chmod(0o700)


def private_file(path: Path) -> None:
    """Make it, empty, unless it is there: so that no library makes it for everybody."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

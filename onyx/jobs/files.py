"""Files that processes on one host share: small typed JSON files, private directories."""

import os
import stat
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from onyx import fs

M = TypeVar("M", bound=BaseModel)


def write_json(path: Path, value: BaseModel, *, durable: bool = True) -> None:
    """Write a value as JSON. A reader sees the old file or the complete new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fs.write_text(path, value.model_dump_json(), durable=durable)


def read_json(path: Path, kind: type[M]) -> M | None:
    """The value in a file; None if there is no file or it is not valid."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


UMASK = 0o077
"""For processes of Onyx: other users of the host cannot read what they write."""


def private_directory(path: Path) -> None:
    """Create the directory for this user alone, with its parents. An existing directory keeps its mode."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def close_directory(path: Path) -> None:
    """The same, but an existing directory is closed to other users too: its sockets give access to the runner."""
    private_directory(path)
    if stat.S_IMODE(path.stat().st_mode) & UMASK:
        path.chmod(0o700)


def private_file(path: Path) -> None:
    """Create an empty file for this user alone, before a library creates it readable for all."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

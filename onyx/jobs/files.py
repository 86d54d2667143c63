"""Files that processes on one host share: small JSON files, event files, private directories, sockets."""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from onyx import fs
from onyx.training.contract.attempt import Event

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


@dataclass
class EventFileReader:
    """Reads events.jsonl while a rank appends to it."""

    path: Path
    offset: int = 0

    def read(self) -> list[Event]:
        """The lines that were completed since the last call. A line that a killed rank left half written is no line."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                chunk = file.read()
        except FileNotFoundError:
            return []
        complete = chunk[: chunk.rfind(b"\n") + 1]
        self.offset += len(complete)
        return [event for line in complete.splitlines() if (event := _parse(line))]


def _parse(line: bytes) -> Event | None:
    try:
        return Event.model_validate(json.loads(line))
    except ValueError:
        return None  # torn on a full disk: the events around it still count


@contextlib.contextmanager
def socket_address(folder: Path, name: str) -> Iterator[str]:
    """A short address of a Unix socket in `folder`: an address has at most 107 bytes, a home's path may have more."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)

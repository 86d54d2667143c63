"""Small JSON files that processes hand to each other: written beside their name and moved there when whole."""

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

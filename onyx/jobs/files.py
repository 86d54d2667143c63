"""Small JSON files that processes hand to each other: written beside their name and moved there when whole."""

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


def write_json(path: Path, value: BaseModel) -> None:
    """A typed value as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(value.model_dump_json())
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(path)


def read_json(path: Path, kind: type[M]) -> M | None:
    """The value in a file; None when it is not there, or not one."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None

"""A checkpoint's directory: written beside its name, then moved there. It replaces a checkpoint and nothing else."""

import glob
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onyx import fs

ABOUT = "checkpoint.json"
"""The file that says that a directory is a checkpoint of Onyx, and which files it has."""

_FAMILY = "onyx.accumulation.system.checkpoint/"
FORMAT = f"{_FAMILY}1"


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse a path where anything stands that is neither a checkpoint nor an empty directory. Changes nothing."""
    target = Path(path).resolve()
    _refuse_foreign(target)
    _refuse_foreign(_former(target))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new directory to fill. Filled without an error, it takes the place of the checkpoint at `path`."""
    check_replaceable(path)
    target = Path(path).resolve()
    _remove_leftovers(target)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    part.mkdir(parents=True)
    try:
        # First of all: a directory that a killed process leaves behind is known to be ours.
        (part / ABOUT).write_text(json.dumps({"format": FORMAT}))
        yield part
        fs.sync_tree(part)
        _move(part, target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def written(path: str | os.PathLike[str]) -> Path:
    """Where the checkpoint of this path is: beside it, if a crash came between the two moves that replace one."""
    target = Path(path).resolve()
    former = _former(target)
    return former if not target.exists() and former.exists() else target


def _move(part: Path, target: Path) -> None:
    former = _former(target)
    if target.exists() and any(target.iterdir()):  # an empty directory is replaced by the move itself
        if former.exists():
            shutil.rmtree(former)
        target.rename(former)
    part.rename(target)
    fs.sync_directory(target.parent)
    shutil.rmtree(former, ignore_errors=True)


def _refuse_foreign(place: Path) -> None:
    if not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir():
        raise FileExistsError(f"{place} is not a directory: give another path for the checkpoint, or move it away")
    names = {file.name for file in place.iterdir()}
    about = _about(place)
    if names and about is None:
        raise FileExistsError(
            f"{place} holds files and is not a checkpoint ({ABOUT} is missing or is not Onyx's): "
            "give another path for the checkpoint, or move it away"
        )
    foreign = sorted(names - {ABOUT, *(about or {}).get("files", ())})
    if foreign:
        raise FileExistsError(
            f"{place} holds more than a checkpoint ({', '.join(foreign[:5])}), which replacing it would delete: "
            "give another path for the checkpoint, or move the rest away"
        )


def _remove_leftovers(target: Path) -> None:
    """What processes that were killed while they wrote have left."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        if not part.is_symlink() and _about(part) is not None:
            shutil.rmtree(part, ignore_errors=True)


def _about(place: Path) -> dict[str, Any] | None:
    """What a checkpoint says of itself; None for anything else."""
    try:
        about = json.loads((place / ABOUT).read_text())
    except (OSError, ValueError):
        return None
    ours = isinstance(about, dict) and str(about.get("format")).startswith(_FAMILY)
    return about if ours and isinstance(about.get("files", []), list) else None


def _former(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")

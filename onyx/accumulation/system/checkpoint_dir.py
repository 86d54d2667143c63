"""The directory of a checkpoint: written beside its name, then renamed. It replaces a checkpoint and nothing else."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onyx import fs

ABOUT = "checkpoint.json"
"""The file that marks a directory as a checkpoint of Onyx and lists its files."""

_FAMILY = "onyx.accumulation.system.checkpoint/"
FORMAT = f"{_FAMILY}1"


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """FileExistsError where anything stands that is neither a checkpoint nor an empty directory. Changes nothing."""
    target = Path(path).resolve()
    _refuse_foreign(target)
    _refuse_foreign(_former(target))


@contextmanager
def replace_checkpoint(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new directory for the caller to fill; then it replaces the checkpoint at `path`. A failure leaves the old one.

    The old checkpoint is moved away, not removed, before the new one takes its name: a kill at any moment leaves one.
    """
    check_replaceable(path)
    target = Path(path).resolve()
    _remove_leftovers(target)
    with fs.publish_directory(target, durable=False, replace=False) as part:
        # Written first, so that what a killed process leaves can be recognised as a checkpoint of Onyx.
        (part / ABOUT).write_text(json.dumps({"format": FORMAT}))
        yield part
        fs.sync_tree(part)
        _move_away(target)
    fs.sync_directory(target.parent)
    shutil.rmtree(_former(target), ignore_errors=True)


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The directory to read: `path`, or the one moved away from it if a kill came between the two renames."""
    target = Path(path).resolve()
    former = _former(target)
    return former if not target.exists() and former.exists() else target


def _move_away(target: Path) -> None:
    if target.exists() and any(target.iterdir()):  # a rename replaces an empty directory by itself
        former = _former(target)
        if former.exists():
            shutil.rmtree(former)
        target.rename(former)


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
    """Remove what killed processes left of this checkpoint, and nothing that only has such a name."""
    for part in fs.temporary_names_of(target):
        if not part.is_symlink() and _about(part) is not None:
            shutil.rmtree(part, ignore_errors=True)


def _about(place: Path) -> dict[str, Any] | None:
    """The content of a checkpoint's ABOUT file; None for anything else."""
    try:
        about = json.loads((place / ABOUT).read_text())
    except (OSError, ValueError):
        return None
    ours = isinstance(about, dict) and str(about.get("format")).startswith(_FAMILY)
    return about if ours and isinstance(about.get("files", []), list) else None


def _former(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")

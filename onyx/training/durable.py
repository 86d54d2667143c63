"""Directories that are there as a whole or not at all, also after a power cut, and that may take another's place."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from onyx.training.atomic import sync_directory


@contextlib.contextmanager
def directory(target: Path) -> Iterator[Path]:
    """A temporary directory that gets its name when everything in it is on the disk. A failure leaves nothing."""
    part = _beside(target, "part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        _sync_tree(part)
        _move(part, target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def remove(target: Path) -> None:
    """Remove a directory so that nobody ever reads half of it."""
    doomed = _beside(target, "gone")
    target.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove what killed processes left behind."""
    for pattern in (".*.part", ".*.gone"):
        for leftover in parent.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _move(part: Path, target: Path) -> None:
    if target.exists():  # the same thing, made by an attempt that did not live to say so
        remove(target)
    part.rename(target)
    sync_directory(target.parent)


def _sync_tree(top: Path) -> None:
    for path in top.rglob("*"):
        if path.is_dir():
            sync_directory(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_directory(top)


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{suffix}")

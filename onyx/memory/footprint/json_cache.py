"""A cache of small JSON files, each under a digest of what it depends on. Needs no torch."""

import contextlib
import hashlib
import json
import logging
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from onyx import fs

logger = logging.getLogger(__name__)

FORMAT = 1
"""Counts up when what is stored, or how it is found, changes its meaning."""

PACKAGES = ("torch", "transformers", "peft")


def home() -> Path:
    """Where Onyx keeps its files: ONYX_HOME, else ~/.onyx."""
    return Path(os.environ.get("ONYX_HOME") or Path.home() / ".onyx")


def versions() -> dict[str, str]:
    """Versions of the packages that decide what a step allocates, from their metadata: none is imported."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class Cache:
    """One directory of entries, such as `footprints`."""

    def __init__(self, name: str, directory: Path | None = None) -> None:
        self._directory = directory or home() / "cache" / name

    def path(self, key: dict[str, Any]) -> Path:
        """The file of a key. The key itself is stored too, so that no collision can give a wrong answer."""
        digest = hashlib.sha256(self._text(key).encode()).hexdigest()
        return self._directory / f"{digest}.json"

    def read(self, key: dict[str, Any]) -> str | None:
        """The stored value; None when there is none, or none that can be read."""
        path = self.path(key)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            if entry["key"] == json.loads(self._text(key)) and isinstance(entry["value"], str):
                return entry["value"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            logger.warning("unreadable cache entry %s: %s", path.name, problem, extra={"action": "cache_unreadable"})
        return None

    def write(self, key: dict[str, Any], value: str) -> None:
        """Store the value; a reader sees all of an entry or none. A full disk loses the entry, with a warning."""
        text = json.dumps({"key": json.loads(self._text(key)), "value": value})
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fs.write_text(path, text, durable=False)
        except OSError as problem:  # a full or read-only disk costs time, not the plan
            logger.warning("cannot store cache entry: %s", problem, extra={"action": "cache_unwritable"})

    @staticmethod
    def _text(key: dict[str, Any]) -> str:
        return json.dumps({"format": FORMAT, **key}, sort_keys=True, default=str)

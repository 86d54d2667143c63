"""What is nobody else's on this host: directories and files that only the service's own user opens."""

import os
import stat
from pathlib import Path

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

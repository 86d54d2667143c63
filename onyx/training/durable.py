"""Names that onyx/training/reference.py still uses; see onyx/fs.py."""

from onyx.fs import publish_directory as directory
from onyx.fs import sweep

__all__ = ["directory", "sweep"]

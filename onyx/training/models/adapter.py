"""Merges an adapter with its base model, once, so that the rest of training only sees plain models."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from onyx import fs
from onyx.training.contract.errors import ModelError
from onyx.training.contract.model_names import ADAPTER_CONFIG
from onyx.training.models.directory import ADAPTER_WEIGHTS, TOKENIZER_FILES, read_json_object

CHUNK = 1 << 20


def base_model(adapter: Path) -> str:
    """The adapter's base model: a directory or a name."""
    value = read_json_object(adapter / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(value, str) or not 0 < len(value) <= 4096:
        raise ModelError("adapter_unsupported", "the adapter does not name its base model")
    return value


def merge_adapter(adapter: Path, base: Path, models_dir: Path, *, remote_code: bool = False) -> Path:
    """The directory of the base with the adapter added to its weights. Made if it does not exist."""
    key = _fingerprint(adapter, base)
    return fs.make_once(models_dir / f"merged-{key}", lambda out: _merge(adapter, base, out, remote_code))


def _merge(adapter: Path, base: Path, out: Path, remote_code: bool) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    local: dict[str, bool] = {"local_files_only": True, "trust_remote_code": remote_code}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, use_safetensors=True, **local)
    try:
        adapted = PeftModel.from_pretrained(model, str(adapter))
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError("adapter_unsupported", "the adapter does not fit the base model that it names") from error
    adapted.merge_and_unload().save_pretrained(out)
    has_tokenizer = any((adapter / name).is_file() for name in TOKENIZER_FILES)
    AutoTokenizer.from_pretrained(adapter if has_tokenizer else base, **local).save_pretrained(out)


def _fingerprint(adapter: Path, base: Path) -> str:
    digest = hashlib.sha256(str(base).encode())
    _add(digest.update, adapter / ADAPTER_CONFIG)
    _add(digest.update, adapter / ADAPTER_WEIGHTS)
    return digest.hexdigest()[:32]


def _add(update: Callable[[bytes], None], path: Path) -> None:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            update(chunk)

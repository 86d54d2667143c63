"""Files of saved state: safetensors for arrays, JSON for the rest, nothing that executes when read.

State dicts nest (an optimizer's has tensors in dicts in dicts). So writing takes each tensor out under its path in the
state, and reading puts it back. `onyx.fs` writes the file beside its name and renames it: readers never see half of it.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onyx import fs

_STATE = "onyx_state"
_TENSOR = "__tensor__"
_INT_KEYS = "__int_keys__"

LEFTOVER_SECONDS = 3600.0
"""A temporary file that has not changed for so long was left by a killed process. A younger one may belong to a process
that is writing the same path now."""


def write_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Save a nested state of tensors and JSON values as one safetensors file."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    skeleton = _without_tensors(state, "state", tensors)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    fs.sweep_leftovers_of(target, older_than=LEFTOVER_SECONDS)  # of this name only: the directory is the user's
    with fs.replace_file(target) as part:
        save_file(tensors, part, metadata={_STATE: json.dumps(skeleton)})


def read_state(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> dict[str, Any]:
    """Load what `write_state` saved."""
    from safetensors import SafetensorError, safe_open

    target = Path(path)
    if not target.is_file():
        raise ValueError(f"no saved state at {target}")
    try:
        with safe_open(target, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        state: dict[str, Any] = _with_tensors(json.loads(metadata[_STATE]), tensors)
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{target} is not a state file that Onyx saved: {error}") from error
    return state


def _without_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # A copy of its own: safetensors refuses tensors that share storage.
        tensors[path] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: path}
    if isinstance(value, dict):
        plain = {str(key): _without_tensors(item, f"{path}.{key}", tensors) for key, item in value.items()}
        int_keys = [str(key) for key in value if isinstance(key, int)]
        return plain | {_INT_KEYS: int_keys} if int_keys else plain
    if isinstance(value, list | tuple):
        return [_without_tensors(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"{path} cannot be saved: {type(value).__name__} is neither a tensor nor a JSON value")


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    int_keys = set(value.get(_INT_KEYS, ()))
    return {
        int(key) if key in int_keys else key: _with_tensors(item, tensors)
        for key, item in value.items()
        if key != _INT_KEYS
    }

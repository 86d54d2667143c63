"""Files of saved state: safetensors for arrays, JSON for the rest, nothing that executes when read.

State dicts nest (an optimizer's has tensors inside of dicts inside of dicts), so tensors are lifted out by their path
and put back. A file is written beside its name and moved there when whole: a reader never meets half of one.
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


def write_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Save a nested state of tensors and JSON values as one safetensors file."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    skeleton = _lift(state, "state", tensors)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
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
        state: dict[str, Any] = _put_back(json.loads(metadata[_STATE]), tensors)
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{target} is not a state file that Onyx saved: {error}") from error
    return state


def _lift(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # A copy of its own: safetensors refuses tensors that share storage.
        tensors[path] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: path}
    if isinstance(value, dict):
        lifted = {str(key): _lift(item, f"{path}.{key}", tensors) for key, item in value.items()}
        numbered = [str(key) for key in value if isinstance(key, int)]
        return lifted | {_INT_KEYS: numbered} if numbered else lifted
    if isinstance(value, list | tuple):
        return [_lift(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"{path} cannot be saved: {type(value).__name__} is neither a tensor nor a JSON value")


def _put_back(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_back(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    numbered = set(value.get(_INT_KEYS, ()))
    return {
        int(key) if key in numbered else key: _put_back(item, tensors)
        for key, item in value.items()
        if key != _INT_KEYS
    }

"""safetensors files, written tensor by tensor.

The library's own writer first copies all tensors, and a rank under a memory limit has no memory for the copies. The
format is a length, a JSON header and the bytes.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from onyx import fs

NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the bytes that follow must be aligned
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        fs.sync_file(file)


def read_tensors(path: Path, into: Mapping[str, Tensor]) -> None:
    """Copy a file's tensors into allocated ones. Names, shapes and types must be exactly the same."""
    with safe_open(path, framework="pt") as file:
        stored = set(file.keys())
        if stored != set(into):
            odd = sorted(stored ^ set(into))[:3]
            raise ValueError(f"{path} holds other tensors than this model has: {', '.join(odd)} …")
        for name, tensor in into.items():
            value = file.get_tensor(name)
            if value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise ValueError(f"{path}: {name} is {value.dtype} {tuple(value.shape)}, not as in this model")
            with torch.no_grad():
                tensor.copy_(value)

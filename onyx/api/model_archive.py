"""A directory as a tar stream, a chunk at a time: however large a model is, memory stays flat."""

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from onyx.training.contract.model_names import ADAPTER_CONFIG

CHUNK = 1 << 20
_END = b"\0" * (2 * tarfile.BLOCKSIZE)


def tar_stream(folder: Path, name: str, instead: Mapping[Path, bytes] = MappingProxyType({})) -> Iterator[bytes]:
    """Every file below `folder`, as `name/…`, owned by nobody in particular. `instead`: other contents of some."""
    for path in sorted(folder.rglob("*")):
        if path in instead:
            yield from _whole(instead[path], f"{name}/{path.relative_to(folder)}")
        elif path.is_file():
            yield from _entry(path, f"{name}/{path.relative_to(folder)}")
    yield _END


def _whole(content: bytes, name: str) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    yield info.tobuf(tarfile.PAX_FORMAT)
    yield content + b"\0" * (-info.size % tarfile.BLOCKSIZE)


def _entry(path: Path, name: str) -> Iterator[bytes]:
    with path.open("rb") as file:
        info = tarfile.TarInfo(name)
        status = path.stat()
        info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), 0o644
        yield info.tobuf(tarfile.PAX_FORMAT)
        left = info.size
        while left and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
        yield b"\0" * (left + -info.size % tarfile.BLOCKSIZE)


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

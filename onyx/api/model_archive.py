"""A model directory as a tar stream, in chunks: memory does not grow with the model."""

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from onyx.training.contract.model_names import ADAPTER_CONFIG

CHUNK = 1 << 20
_END = b"\0" * (2 * tarfile.BLOCKSIZE)


def tar_stream(folder: Path, name: str, replaced: Mapping[Path, bytes] = MappingProxyType({})) -> Iterator[bytes]:
    """Every file below `folder`, as `name/…` and without an owner. `replaced` has other contents for some files."""
    for path in sorted(folder.rglob("*")):
        if path in replaced:
            yield from _content_entry(replaced[path], f"{name}/{path.relative_to(folder)}")
        elif path.is_file():
            yield from _file_entry(path, f"{name}/{path.relative_to(folder)}")
    yield _END


def _content_entry(content: bytes, name: str) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    yield info.tobuf(tarfile.PAX_FORMAT)
    yield content + b"\0" * (-info.size % tarfile.BLOCKSIZE)


def _file_entry(path: Path, name: str) -> Iterator[bytes]:
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


def rewritten_files(folder: Path, base: str) -> dict[Path, bytes]:
    """New contents of files that must not be sent as they are.

    An adapter's config names the base model by its directory on this host, so that PEFT loads both here. For the client
    that path is useless and reveals the host's layout: it gets the name under which the base was requested.
    """
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        return {}
    config = json.loads(path.read_text())
    return {path: json.dumps(config | {"base_model_name_or_path": base}, indent=2, sort_keys=True).encode()}

"""`onyx jobs download`: the published model of a job, as a local directory."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from onyx import fs
from onyx.cli.client import ServiceClient
from onyx.cli.output import (
    DEFAULT_URL,
    USAGE,
    CommandError,
    JobId,
    Json,
    Key,
    UnreachableError,
    Url,
    print_json,
    print_line,
)

CHUNK = 1 << 20


def download(
    job_id: JobId,
    to: Annotated[Path | None, typer.Option(help="Directory to create; default: the job's id.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Download the model of a job that has succeeded."""
    folder = to or Path(job_id)
    download_model(ServiceClient(url, key), job_id, folder)
    _print_result(folder, as_json)


def download_model(service: ServiceClient, job_id: str, folder: Path) -> None:
    """Download a job's model to `folder`, which appears when it is complete."""
    if folder.exists():
        raise CommandError(f"{folder} already exists: choose another directory with --to", USAGE)
    try:
        with (
            service.stream(f"/training/{job_id}/model") as response,
            fs.publish_directory(folder, durable=False, replace=False) as part,
        ):
            _unpack(response.iter_bytes(CHUNK), part)
    except tarfile.TarError as error:
        raise UnreachableError(f"the download was cut off ({error}): start it again") from None
    except OSError as error:
        raise CommandError(f"cannot write {folder}: {error.strerror}") from None


def _print_result(folder: Path, as_json: bool) -> None:
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if as_json:
        print_json({"path": str(folder), "files": files})
        return
    library = "peft" if "adapter_config.json" in files else "transformers"
    print_line(f"{folder}: {len(files)} files; load the directory with {library}")


def _unpack(chunks: Iterator[bytes], folder: Path) -> None:
    """Extract the files of a tar stream without their common first directory, and never outside of `folder`."""
    with tarfile.open(fileobj=ChunkReader(chunks), mode="r|") as tar:
        for member in tar:
            inner = member.replace(name=member.name.partition("/")[2])
            if inner.isfile() and inner.name:
                tar.extract(inner, folder, filter="data")


class ChunkReader(io.RawIOBase):
    """Presents an iterator of chunks as a readable file, as tarfile needs it."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

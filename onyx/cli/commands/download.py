"""`onyx jobs download`: a published model as a directory here."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from onyx import fs
from onyx.cli.client import Service
from onyx.cli.output import DEFAULT_URL, USAGE, AwayFailure, CommandFailure, JobId, Json, Key, Url, emit, say

CHUNK = 1 << 20


def download(
    job_id: JobId,
    to: Annotated[Path | None, typer.Option(help="The directory to make; without it, one named like the job.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Fetch the model of a job that has succeeded."""
    folder = to or Path(job_id)
    fetch(Service(url, key), job_id, folder)
    _tell(folder, as_json)


def fetch(service: Service, job_id: str, folder: Path) -> None:
    """The model of a job as `folder`, which appears when it is complete."""
    if folder.exists():
        raise CommandFailure(f"{folder} is there already: name another directory with --to", USAGE)
    try:
        with (
            service.stream(f"/training/{job_id}/model") as response,
            fs.publish_directory(folder, durable=False, replace=False) as part,
        ):
            _unpack(response.iter_bytes(CHUNK), part)
    except tarfile.TarError as error:
        raise AwayFailure(f"the model did not come whole ({error}): ask for it again") from None
    except OSError as error:
        raise CommandFailure(f"{folder} cannot be written: {error.strerror}") from None


def _tell(folder: Path, as_json: bool) -> None:
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if as_json:
        emit({"path": str(folder), "files": files})
        return
    how = "peft" if "adapter_config.json" in files else "transformers"
    say(f"{folder}: {len(files)} files, loaded as it is by {how}")


def _unpack(chunks: Iterator[bytes], folder: Path) -> None:
    """Files of a tar stream without their common first directory. Nothing can leave `folder`."""
    with tarfile.open(fileobj=Stream(chunks), mode="r|") as tar:
        for member in tar:
            inner = member.replace(name=member.name.partition("/")[2])
            if inner.isfile() and inner.name:
                tar.extract(inner, folder, filter="data")


class Stream(io.RawIOBase):
    """Chunks as a file that can be read once."""

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

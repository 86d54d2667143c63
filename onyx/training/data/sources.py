"""Where samples come from: a source has a fingerprint of its content and an iterator over its rows."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onyx.training.contract.errors import DataError
from onyx.training.contract.spec import DataSpec
from onyx.training.data.text_lines import NumberedRow, jsonl_rows, text_rows
from onyx.training.models.hub import is_refusal

CHUNK = 1 << 20
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One part of the data: what to train on, or what to evaluate on."""

    fingerprint: str
    """Changes when the content does, and only then."""

    rows: Callable[[], Iterator[NumberedRow]]
    unchanged: Callable[[], bool] = lambda: True
    """Whether the content still is what the fingerprint was taken of."""


def training_source(spec: DataSpec, roots: tuple[Path, ...] | None, token: str | None) -> Source:
    """The data to train on."""
    if spec.path is not None:
        return _file(spec.path, roots, "data.path")
    if spec.hub is not None:
        return _hub(spec.hub, spec.hub_split, token)
    if spec.texts is not None:
        return _rows([{"text": text} for text in spec.texts])
    return _rows(spec.rows or [])


def evaluation_source(spec: DataSpec, roots: tuple[Path, ...] | None) -> Source | None:
    """The data to evaluate on, when it is not a part of the training data."""
    if spec.evaluation_path is not None:
        return _file(spec.evaluation_path, roots, "data.evaluation_path")
    return _rows(spec.evaluation_rows) if spec.evaluation_rows is not None else None


def _rows(rows: Iterable[Any]) -> Source:
    given = list(rows)
    digest = hashlib.sha256()
    for row in given:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return Source(fingerprint=f"rows:{digest.hexdigest()}", rows=lambda: iter(enumerate(given, 1)))


def _file(name: str, roots: tuple[Path, ...] | None, param: str) -> Source:
    path = _checked_path(name, roots, param)
    kind, reader = _reader(path, param)
    if path.stat().st_size == 0:
        raise DataError("empty_file", "the file is empty", param=param)
    before = _identity(path)
    return Source(
        fingerprint=f"{kind}:{_hash(path)}", rows=lambda: reader(path), unchanged=lambda: _identity(path) == before
    )


def _checked_path(name: str, roots: tuple[Path, ...] | None, param: str) -> Path:
    if "\0" in name:
        raise DataError("file_not_found", "the file's name has a NUL byte", param=param)
    path = Path(name).resolve()
    if roots is not None and not any(path.is_relative_to(root.resolve()) for root in roots):
        raise DataError("file_outside_root", "the file is not under the operator's data root", param=param)
    if not path.is_file():
        raise DataError("file_not_found", f"there is no file {Path(name).name!r}", param=param)
    return path


def _reader(path: Path, param: str) -> tuple[str, Callable[[Path], Iterator[NumberedRow]]]:
    from onyx.training.data.tables import csv_rows, parquet_rows

    kinds: dict[str, Callable[[Path], Iterator[NumberedRow]]] = {
        ".jsonl": jsonl_rows,
        ".ndjson": jsonl_rows,
        ".json": _json_as_lines,
        ".csv": csv_rows,
        ".parquet": parquet_rows,
        ".txt": text_rows,
    }
    kind = path.suffix.lower()
    if kind not in kinds:
        raise DataError(
            "file_type", f"a file must be one of {', '.join(kinds)}, not {kind or 'without a suffix'}", param=param
        )
    return kind, kinds[kind]


def _json_as_lines(path: Path) -> Iterator[NumberedRow]:
    with path.open("rb") as file:
        if file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            raise DataError("file_type", "the file is a JSON list: give JSONL, one object per line")
    yield from jsonl_rows(path)


def _hub(name: str, split: str, token: str | None) -> Source:
    from onyx.training.data.tables import hub_rows

    # `datasets` prefers a local directory of that name, and a user must not reach one by a hub name.
    if not HUB_NAME.fullmatch(name) or ".." in name or Path(name).exists():
        raise DataError("hub_dataset", "a data set on the hub is named owner/name", param="data.hub")
    revision = _revision(name, token)
    return Source(fingerprint=f"hub:{name}@{revision}:{split}", rows=lambda: hub_rows(name, revision, split, token))


def _revision(name: str, token: str | None) -> str:
    from huggingface_hub import HfApi

    try:
        return str(HfApi(token=token or False).dataset_info(name).sha)
    except Exception as error:  # the hub's client raises errors of its own, of its transport and of the system
        if is_refusal(error):
            raise DataError(
                "hub_dataset", f"the hub has no data set {name!r}, or no access to it for this server", param="data.hub"
            ) from None
        raise DataError(
            "hub_unreachable",
            f"the hub could not be reached for data set {name!r}: try again later, or give a file",
            param="data.hub",
        ) from None


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _identity(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns

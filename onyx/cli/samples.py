"""A file of samples on its way to a service: inside of the request when it is small, uploaded when it is not."""

import csv
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onyx.cli.client import Service
from onyx.cli.output import USAGE, CommandFailure

INLINE_BYTES = 1 << 20
"""Larger files are uploaded."""

LINES = (".jsonl", ".ndjson", ".json")
_JSON_COLUMNS = ("messages", "tools", "functions")


def dataset_of(path: Path, service: Service) -> dict[str, Any]:
    """The part of a dataset_config that names these samples."""
    reader = _reader(path)
    try:
        if path.stat().st_size <= INLINE_BYTES:
            return {"rows": list(_rows(path, reader))}
        return {"file_id": _upload(path, reader, service)}
    except OSError as error:
        raise CommandFailure(f"{path} cannot be read: {error.strerror}", USAGE) from None


def _upload(path: Path, reader: "Reader", service: Service) -> str:
    if path.suffix.lower() in LINES:
        return service.upload(path, path.name)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as lines:
        for row in _rows(path, reader):
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        lines.flush()
        return service.upload(Path(lines.name), f"{path.stem}.jsonl")


Reader = Callable[[Path], Iterator[tuple[int, Any]]]


def _reader(path: Path) -> Reader:
    from onyx.training.data.text_lines import jsonl_rows, text_rows

    kind = path.suffix.lower()
    readers: Mapping[str, Reader] = {".txt": text_rows, ".csv": csv_rows} | dict.fromkeys(LINES, jsonl_rows)
    if kind not in readers:
        raise CommandFailure(
            f"{path.name} is of no kind that can be sent: give .jsonl, .txt or .csv, or have the operator put it "
            "into the data root and name it with --data-path",
            USAGE,
        )
    return readers[kind]


def csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows under a header; every cell is text, and cells of chats hold JSON."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, row in enumerate(csv.DictReader(file), 1):
            yield number, {name: _cell(name, value) for name, value in row.items() if name is not None}


def _cell(name: str, value: Any) -> Any:
    if name not in _JSON_COLUMNS or not value:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value  # the service says what is wrong with it


def _rows(path: Path, reader: Reader) -> Iterator[dict[str, Any]]:
    from onyx.training.contract.errors import DataError
    from onyx.training.data.findings import Finding

    try:
        for number, row in reader(path):
            if isinstance(row, Finding):
                raise CommandFailure(f"{path.name}, line {number}: {row.message}", USAGE)
            if not isinstance(row, dict):
                raise CommandFailure(f"{path.name}, line {number}: a sample is an object in braces", USAGE)
            yield row
    except (DataError, UnicodeDecodeError) as error:
        raise CommandFailure(f"{path.name}: {error}", USAGE) from None

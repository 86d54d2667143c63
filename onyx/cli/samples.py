"""A local file of samples as a dataset_config: small files as rows in the request, larger ones as an upload."""

import csv
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onyx.cli.client import ServiceClient
from onyx.cli.output import USAGE, CommandError

INLINE_BYTES = 1 << 20
"""Larger files are uploaded."""

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
_JSON_COLUMNS = ("messages", "tools", "functions")
"""CSV columns whose cells hold JSON."""


def dataset_config(path: Path, service: ServiceClient) -> dict[str, Any]:
    """The fields of a dataset_config that name these samples: `rows`, or the `file_id` of an upload."""
    reader = _reader(path)
    try:
        if path.stat().st_size <= INLINE_BYTES:
            return {"rows": list(_rows(path, reader))}
        return {"file_id": _upload(path, reader, service)}
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", USAGE) from None


def _upload(path: Path, reader: "Reader", service: ServiceClient) -> str:
    if path.suffix.lower() in JSONL_SUFFIXES:
        return service.upload(path, path.name)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as jsonl:
        for row in _rows(path, reader):
            jsonl.write(json.dumps(row, ensure_ascii=False) + "\n")
        jsonl.flush()
        return service.upload(Path(jsonl.name), f"{path.stem}.jsonl")


Reader = Callable[[Path], Iterator[tuple[int, Any]]]


def _reader(path: Path) -> Reader:
    from onyx.training.data.text_lines import jsonl_rows, text_rows

    suffix = path.suffix.lower()
    readers: Mapping[str, Reader] = {".txt": text_rows, ".csv": csv_rows} | dict.fromkeys(JSONL_SUFFIXES, jsonl_rows)
    if suffix not in readers:
        raise CommandError(
            f"{path.name} has an unsupported type: use .jsonl, .txt or .csv, or ask the operator to put the file "
            "into the data root and name it with --data-path",
            USAGE,
        )
    return readers[suffix]


def csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows below a header line. Every cell is text; cells of chat columns hold JSON."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, row in enumerate(csv.DictReader(file), 1):
            yield number, {name: _cell(name, value) for name, value in row.items() if name is not None}


def _cell(name: str, value: Any) -> Any:
    if name not in _JSON_COLUMNS or not value:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value  # the service reports what is wrong with it


def _rows(path: Path, reader: Reader) -> Iterator[dict[str, Any]]:
    from onyx.training.contract.errors import DataError
    from onyx.training.data.findings import Finding

    try:
        for number, row in reader(path):
            if isinstance(row, Finding):
                raise CommandError(f"{path.name}, line {number}: {row.message}", USAGE)
            if not isinstance(row, dict):
                raise CommandError(f"{path.name}, line {number}: a sample must be a JSON object", USAGE)
            yield row
    except (DataError, UnicodeDecodeError) as error:
        raise CommandError(f"{path.name}: {error}", USAGE) from None

"""CSV, Parquet and data sets of a hub, streamed by `datasets`. Ranks never import this, and so no pyarrow."""

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onyx.training.contract.errors import DataError
from onyx.training.data.findings import Finding
from onyx.training.data.preference_lines import NON_PREFERRED, PREFERRED
from onyx.training.data.text_lines import NumberedRow, parse_json

JSON_COLUMNS = ("messages", "tools", "functions", "input", *PREFERRED, *NON_PREFERRED)
"""Columns whose cells may hold JSON, because a CSV file has no lists."""

CHUNK_ROWS = 500
"""A broken row makes its whole chunk unreadable, so chunks are small."""


def csv_rows(path: Path) -> Iterator[NumberedRow]:
    """Rows of a CSV file with a header, which is not counted."""
    columns = _header(path)
    from datasets import Features, Value

    # Every cell is text: otherwise `datasets` would read a column of digits as numbers.
    features = Features({name: Value("string") for name in columns})
    options = {"features": features, "keep_default_na": False, "encoding": "utf-8-sig", "chunksize": CHUNK_ROWS}
    yield from _numbered(_stream("csv", path, **options), "CSV")


def parquet_rows(path: Path) -> Iterator[NumberedRow]:
    """Rows of a Parquet file."""
    yield from _numbered(_stream("parquet", path), "Parquet")


def hub_rows(name: str, revision: str, split: str, token: str | None) -> Iterator[NumberedRow]:
    """Rows of a data set on the hub, at one revision."""
    from datasets import load_dataset

    try:
        stream = load_dataset(name, split=split, revision=revision, streaming=True, token=token or False)
    except Exception as error:  # a data set's loader can raise anything
        raise DataError(
            "hub_dataset", f"data set {name!r} with split {split!r} cannot be read: {_line(error)}"
        ) from None
    yield from _numbered(stream, f"data set {name}")


def _stream(kind: str, path: Path, **options: Any) -> Iterable[dict[str, Any]]:
    from datasets import load_dataset

    try:
        return load_dataset(kind, data_files=str(path), split="train", streaming=True, **options)  # type: ignore[no-any-return]
    except ValueError as error:
        raise _unreadable(kind, error) from error


def _numbered(rows: Iterable[dict[str, Any]], kind: str) -> Iterator[NumberedRow]:
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            yield number, _unpack(row)
    except (ValueError, OSError) as error:
        # Unlike a reader of lines, this one cannot go on with the next row.
        yield (
            number + 1,
            Finding(f"invalid_{kind.split()[0].lower()}", f"no row from here on can be read: {_line(error)}"),
        )


def _unpack(row: dict[str, Any]) -> dict[str, Any] | Finding:
    """A row without its empty cells, and with JSON cells parsed."""
    value = {key: _without_none(cell) for key, cell in row.items() if cell is not None}
    for key in JSON_COLUMNS:
        cell = value.get(key)
        if not isinstance(cell, str):
            continue
        if not cell.strip():
            del value[key]
            continue
        read = parse_json(cell)
        if isinstance(read, Finding):
            return read.at(f"column {key}")
        value[key] = read
    return value


def _without_none(value: Any) -> Any:
    """Without the keys that are None: Arrow gives every message each key that any message has."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _header(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            columns = next(csv.reader(file), [])
    except csv.Error as error:
        raise DataError("invalid_csv", f"the CSV header cannot be read: {_line(error)}") from error
    if not columns:
        raise DataError("empty_file", "the CSV file is empty: its first line names the columns")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise DataError("invalid_csv", f"the CSV header names {twice[0]!r} twice")
    return columns


def _unreadable(kind: str, error: Exception) -> DataError:
    return DataError(f"invalid_{kind}", f"the file cannot be read as {kind}: {_line(error)}")


def _line(error: BaseException) -> str:
    """The first line of the error, without the host's paths."""
    return re.sub(r"(/[^\s'\"/]+){2,}", "…", str(error).strip().split("\n", 1)[0])[:300]

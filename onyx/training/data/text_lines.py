"""Reads text files line by line, because a file may be larger than memory. Needs no torch and no datasets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from onyx.training.contract.errors import DataError
from onyx.training.data.findings import Finding

Row = Any
NumberedRow = tuple[int, Row | Finding]
"""A line's number, counted from 1, with its value or why it cannot be read."""

LONGEST_LINE = 16 * 2**20
"""Bytes. A longer line means that line ends are missing."""

BOM = b"\xef\xbb\xbf"
WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")


class _DuplicateKeyError(ValueError):
    """A JSON object has a key twice, so its value is ambiguous."""


def jsonl_rows(path: Path) -> Iterator[NumberedRow]:
    """The JSON value of each line."""
    for number, line in _lines(path):
        yield number, parse_json(line) if isinstance(line, str) else line


def text_rows(path: Path) -> Iterator[NumberedRow]:
    """Each line as a text sample."""
    for number, line in _lines(path):
        yield number, {"text": line} if isinstance(line, str) else line


def parse_json(text: str) -> Row | Finding:
    """The value. Duplicate keys, NaN and too deep nesting are refused."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except _DuplicateKeyError as error:
        return Finding("duplicate_key", f"the key {error.args[0]!r} occurs twice")
    except json.JSONDecodeError as error:
        return Finding("invalid_json", f"not JSON: {error.msg} at character {error.pos + 1}")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).split(";", 1)[0]
        return Finding("invalid_json", f"not JSON: {reason}")


def _lines(path: Path) -> Iterator[tuple[int, str | Finding]]:
    """Lines that are not blank."""
    with path.open("rb") as file:
        start = file.read(len(BOM))
        if start.startswith(WIDE_BOMS):
            raise DataError("invalid_encoding", "the file is UTF-16: save it as UTF-8")
        if start != BOM:
            file.seek(0)
        number = 0
        while raw := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(raw) > LONGEST_LINE:
                _skip_line(file, raw)
                yield number, Finding("line_too_long", f"the line is longer than {LONGEST_LINE // 2**20} MiB")
            elif raw.strip():
                yield number, _decode(raw)


def _skip_line(file: IO[bytes], raw: bytes) -> None:
    while raw and not raw.endswith(b"\n"):
        raw = file.readline(LONGEST_LINE)


def _decode(raw: bytes) -> str | Finding:
    if b"\0" in raw:
        return Finding("nul_byte", f"byte {raw.index(0) + 1} is NUL: the file is not plain text")
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        return Finding("invalid_utf8", f"not UTF-8 at byte {error.start + 1}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateKeyError(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")

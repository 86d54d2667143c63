"""Lines of files, also of broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyx.training.contract.errors import DataError
from onyx.training.data import text_lines as lines
from onyx.training.data.findings import Finding
from onyx.training.data.text_lines import jsonl_rows, parse_json, text_rows

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(tmp_path: Path, content: bytes, reader: Any = jsonl_rows) -> list[tuple[int, Any]]:
    (tmp_path / "file").write_bytes(content)
    return [(number, row.code if isinstance(row, Finding) else row) for number, row in reader(tmp_path / "file")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(JSON, max_size=5), ends=st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_what_was_written_is_read(tmp_path: Path, rows: list[Any], ends: str) -> None:
    content = ends.join(json.dumps(row) for row in rows).encode()
    assert [row for _, row in read(tmp_path, content)] == rows


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{oops", "invalid_json"),
        (b"{'text': 'a'}", "invalid_json"),
        (b'{"text": NaN}', "invalid_json"),
        (b'{"text": "a"} {"text": "b"}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"9" * 10_000, "invalid_json"),
        (b'{"text": "a", "text": "b"}', "duplicate_key"),
        (b'{"a": {"b": 1, "b": 2}}', "duplicate_key"),
        (b'{"text": "a\x00b"}', "nul_byte"),
        (b'{"text": "\xff"}', "invalid_utf8"),
        (b'{"text": "\xed\xa0\x80"}', "invalid_utf8"),
    ],
)
def test_a_bad_line_has_its_number_and_the_rest_is_read(tmp_path: Path, line: bytes, code: str) -> None:
    assert read(tmp_path, b'{"a": 1}\n\n' + line + b'\n{"a": 2}') == [(1, {"a": 1}), (3, code), (4, {"a": 2})]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert read(tmp_path, b'\xef\xbb\xbf{"a": 1}') == [(1, {"a": 1})]
    with pytest.raises(DataError, match="UTF-16") as error:
        read(tmp_path, '{"a": 1}'.encode("utf-16"))
    assert error.value.code == "invalid_encoding"


def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 10)
    content = b"x" * 35 + b"\n1\n" + b"y" * 10 + b"\n" + b"z" * 20
    assert read(tmp_path, content) == [
        (1, "line_too_long"),
        (2, 1),
        (3, "line_too_long"),
        (4, "line_too_long"),
    ]


def test_each_line_of_a_text_file_is_a_sample(tmp_path: Path) -> None:
    assert read(tmp_path, b"one\r\n\n  two \n", text_rows) == [(1, {"text": "one"}), (3, {"text": "  two "})]


def test_a_finding_names_the_character() -> None:
    found = parse_json('{"a": }')
    assert isinstance(found, Finding)
    assert "character 7" in found.message

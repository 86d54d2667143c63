"""CSV, Parquet and data sets of a hub."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onyx.training.contract.errors import DataError
from onyx.training.data.findings import Finding
from onyx.training.data.tables import csv_rows, hub_rows, parquet_rows


def csv(tmp_path: Path, content: str | bytes) -> list[tuple[int, Any]]:
    path = tmp_path / "file.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(csv_rows(path))


def test_cells_are_text(tmp_path: Path) -> None:
    rows = csv(tmp_path, '\ufeffprompt,completion,extra\n1,2,\n"a,b",NA,x\n"two\nlines",true,null\n')
    assert rows == [
        (1, {"prompt": "1", "completion": "2", "extra": ""}),
        (2, {"prompt": "a,b", "completion": "NA", "extra": "x"}),
        (3, {"prompt": "two\nlines", "completion": "true", "extra": "null"}),
    ]


def test_cells_can_hold_json(tmp_path: Path) -> None:
    rows = csv(tmp_path, 'messages,tools\n"[{""role"": ""user""}]",\n{oops,[]\n')
    assert rows[0] == (1, {"messages": [{"role": "user"}]})
    assert isinstance(rows[1][1], Finding)
    assert rows[1][1].code == "invalid_json"


@pytest.mark.parametrize("content", [b"text\na\nb,c,d\n", b"text\na\n\xff\n"])
def test_a_broken_csv_has_a_finding_at_its_line(tmp_path: Path, content: bytes) -> None:
    rows = csv(tmp_path, content)
    assert isinstance(rows[-1][1], Finding)
    assert rows[-1][1].code == "invalid_csv"
    assert str(tmp_path) not in rows[-1][1].message


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "empty_file"), (b"a,a\n1,2\n", "invalid_csv"), (b"\n", "empty_file")]
)
def test_a_csv_needs_a_header(tmp_path: Path, content: bytes, code: str) -> None:
    with pytest.raises(DataError) as error:
        csv(tmp_path, content)
    assert error.value.code == code


def test_parquet_gives_messages_as_they_were_written(tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo", "weight": 1},
    ]
    pq.write_table(pa.Table.from_pylist([{"messages": messages, "text": None}, {"text": "a"}]), tmp_path / "a.parquet")
    assert list(parquet_rows(tmp_path / "a.parquet")) == [(1, {"messages": messages}), (2, {"text": "a"})]


def test_a_broken_parquet_is_a_finding_without_paths(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nonsense")
    try:
        ((number, found),) = parquet_rows(tmp_path / "a.parquet")
        assert number == 1
        message, code = found.message, found.code
    except DataError as error:
        message, code = error.message, error.code
    assert code == "invalid_parquet"
    assert str(tmp_path) not in message


def test_a_data_set_of_the_hub_is_streamed_at_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    options_used: dict[str, Any] = {}

    def load(name: str, **options: Any) -> Any:
        options_used.update(options, name=name)
        return iter([{"text": "a", "other": None}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(hub_rows("a/b", "sha", "train", None)) == [(1, {"text": "a"})]
    assert options_used == {"name": "a/b", "split": "train", "revision": "sha", "streaming": True, "token": False}

    def fail(name: str, **options: Any) -> Any:
        raise ValueError("Bad split")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match="Bad split"):
        list(hub_rows("a/b", "sha", "nope", None))

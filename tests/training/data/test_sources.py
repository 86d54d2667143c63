"""Sources: their fingerprints, and what they refuse."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from onyx.training.contract.errors import DataError
from onyx.training.contract.spec import DataSpec
from onyx.training.data.sources import evaluation_source, training_source


def source(roots: tuple[Path, ...] | None = None, **data: Any) -> Any:
    return training_source(DataSpec(**data), roots, None)


def code(roots: tuple[Path, ...] | None = None, **data: Any) -> str:
    with pytest.raises(DataError) as error:
        source(roots, **data)
    return error.value.code


def test_texts_are_read_as_rows() -> None:
    assert list(source(texts=["a", "b"]).rows()) == [(1, {"text": "a"}), (2, {"text": "b"})]
    assert source(texts=["a"]).fingerprint == source(rows=[{"text": "a"}]).fingerprint
    assert source(texts=["a"]).fingerprint != source(texts=["b"]).fingerprint
    assert source(texts=["ab"]).fingerprint != source(texts=["a", "b"]).fingerprint


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.json", "a.txt"])
def test_a_files_suffix_decides_its_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"text": "a"}\n')
    text = '{"text": "a"}' if name.endswith("txt") else "a"
    assert list(source(path=str(tmp_path / name)).rows()) == [(1, {"text": text})]


def test_a_files_fingerprint_depends_on_its_content_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"text": "a"}\n')
    second.write_text('{"text": "a"}\n')
    taken = source(path=str(first))
    assert taken.fingerprint == source(path=str(second)).fingerprint
    assert taken.unchanged()
    first.write_text('{"text": "b"}\n\n')
    assert not taken.unchanged()
    assert taken.fingerprint != source(path=str(first)).fingerprint


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_text("x")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "list.json").write_text('[{"text": "a"}]')
    assert code(path=str(tmp_path / "a.pkl")) == "file_type"
    assert code(path=str(tmp_path / "empty.jsonl")) == "empty_file"
    assert code(path=str(tmp_path / "nothing.jsonl")) == "file_not_found"
    assert code(path=str(tmp_path)) == "file_not_found"
    assert code(path="a\0.jsonl") == "file_not_found"
    assert code(path="https://example.com/a.jsonl") == "file_not_found"
    with pytest.raises(DataError, match="a JSON list"):
        list(source(path=str(tmp_path / "list.json")).rows())


def test_files_outside_the_operators_roots_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("x")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "good.txt").write_text("x")
    assert source((tmp_path / "other", root), path=str(root / "good.txt"))
    for path in (tmp_path / "secret.txt", root / ".." / "secret.txt", root / "link.txt", tmp_path / "nothing.txt"):
        assert code((root,), path=str(path)) == "file_outside_root"
    with pytest.raises(DataError) as error:
        evaluation_source(DataSpec(texts=["a"], evaluation_path=str(tmp_path / "secret.txt")), (root,))
    assert error.value.param == "data.evaluation_path"


def test_evaluation_data_can_be_rows_or_absent() -> None:
    assert evaluation_source(DataSpec(texts=["a"]), None) is None
    given = evaluation_source(DataSpec(texts=["a"], evaluation_rows=[{"text": "b"}]), None)
    assert given is not None
    assert list(given.rows()) == [(1, {"text": "b"})]


@pytest.mark.parametrize("name", ["csv", "../x", "/etc", "a/b/c", "a/..", "json", ""])
def test_a_path_is_not_a_hub_name(name: str) -> None:
    assert code(hub=name) == "hub_dataset"


def test_a_local_directory_with_a_hub_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert code(hub="owner/name") == "hub_dataset"


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, name: str) -> None:
        raise ConnectionError("token=hf_secret")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    with pytest.raises(DataError, match="could not be reached") as error:
        source(hub="owner/name")
    assert error.value.code == "hub_unreachable"
    assert "secret" not in str(error.value)


def test_the_fingerprint_of_a_hub_data_set_has_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, name: SimpleNamespace(sha="abc"))
    assert source(hub="owner/name").fingerprint == "hub:owner/name@abc:train"

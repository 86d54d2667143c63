from pathlib import Path

import pytest

from onyx.training import durable


def test_a_directory_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with durable.directory(target) as part:
        (part / "file").write_text("one")
        assert not target.exists()
    assert (target / "file").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_a_failure_leaves_nothing_and_what_was_there_stays(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with durable.directory(target) as part:
        (part / "file").write_text("one")
    with pytest.raises(IsADirectoryError), durable.directory(target) as part:
        part.write_text("two")
    assert (target / "file").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_the_later_one_takes_the_place_of_the_former(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with durable.directory(tmp_path / "thing") as part:
            (part / "file").write_text(text)
    assert (tmp_path / "thing" / "file").read_text() == "two"


def test_leftovers_of_the_killed_are_swept(tmp_path: Path) -> None:
    for name in (".thing.123.part", ".thing.9.gone", "thing"):
        (tmp_path / name).mkdir()
    durable.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]

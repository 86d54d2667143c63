from pathlib import Path

import pytest

from onyx.memory.footprint.json_cache import Cache, home, versions

KEY = {"model": "a", "n": 1}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    cache = Cache("x", tmp_path / "deep" / "er")
    assert cache.read(KEY) is None
    cache.write(KEY, "value")
    assert cache.read({"n": 1, "model": "a"}) == "value"
    assert cache.read({"model": "a", "n": 2}) is None
    assert [each.suffix for each in cache.path(KEY).parent.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"key": {}}', '{"key": {}, "value": "stolen"}', "\x00\xff"])
def test_a_broken_entry_is_as_none(tmp_path: Path, text: str) -> None:
    cache = Cache("x", tmp_path)
    cache.write(KEY, "value")
    cache.path(KEY).write_text(text, encoding="latin-1")
    assert cache.read(KEY) is None
    cache.write(KEY, "again")
    assert cache.read(KEY) == "again"


def test_a_disk_that_takes_nothing_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Cache("x", tmp_path / "file").write(KEY, "value")


def test_home_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONYX_HOME", str(tmp_path))
    assert home() == tmp_path
    assert Cache("footprints").path(KEY).parent == tmp_path / "cache" / "footprints"
    monkeypatch.delenv("ONYX_HOME")
    assert home() == Path.home() / ".onyx"


def test_versions_of_what_decides() -> None:
    assert set(versions()) == {"torch", "transformers", "peft"}

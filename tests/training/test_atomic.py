"""Whole or not there, once or not again."""

import os
import threading
import time
from pathlib import Path

import pytest

from onyx.training.atomic import STALE_SECONDS, once, write_text


def test_a_file_is_replaced_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in ("one", "twö"):
        write_text(tmp_path / "file", text)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "twö"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 - hidden names too


def test_a_file_that_cannot_be_written_keeps_the_old_one(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "\ud800")
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(out: Path) -> None:
        made.append(out)
        time.sleep(0.05)
        (out / "x").write_text("whole")

    threads = [threading.Thread(target=once, args=(tmp_path / "a" / "b", make)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 1
    assert (tmp_path / "a" / "b" / "x").read_text() == "whole"


def test_without_locks_the_first_rename_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks on this file system")

    monkeypatch.setattr("fcntl.flock", no_locks)

    def make(out: Path) -> None:
        other = tmp_path / "b"
        other.mkdir()
        (other / "x").write_text("first")
        (out / "x").write_text("second")

    once(tmp_path / "b", make)
    assert (tmp_path / "b" / "x").read_text() == "first"
    assert not list(tmp_path.glob(".part-*"))


def test_a_failed_maker_leaves_nothing(tmp_path: Path) -> None:
    def make(out: Path) -> None:
        (out / "x").write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        once(tmp_path / "b", make)
    assert not (tmp_path / "b").exists()
    assert not list(tmp_path.glob(".part-*"))


def test_what_dead_makers_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, young = tmp_path / ".part-a-1", tmp_path / ".part-a-2"
    old.mkdir()
    young.mkdir()
    past = time.time() - STALE_SECONDS - 60
    os.utime(old, (past, past))
    once(tmp_path / "b", lambda out: None)
    assert not old.exists()
    assert young.exists()

"""Files and directories are whole or not there, old or new, once or not again."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from onyx import fs

AUTHORS = 3
ROUNDS = 200


def names(folder: Path) -> list[str]:
    """Hidden ones too."""
    return sorted(os.listdir(folder))  # noqa: PTH208


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_and_leaves_nothing_beside_it(tmp_path: Path, durable: bool) -> None:
    for text in ("one", "twö"):
        fs.write_text(tmp_path / "file", text, durable=durable)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "twö"
    assert names(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_keeps_the_old_one(tmp_path: Path) -> None:
    fs.write_text(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        fs.write_text(tmp_path / "file", "\ud800")
    with pytest.raises(IsADirectoryError), fs.replace_file(tmp_path) as part:
        part.write_text("half")
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_only_a_durable_write_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def listed(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", listed)
    fs.write_text(tmp_path / "file", "one", durable=False)
    assert synced == []
    fs.write_text(tmp_path / "file", "two")
    first, second = synced
    assert first.startswith(str(tmp_path / ".file."))  # before the rename, under the temporary name
    assert second == str(tmp_path)


def test_writers_at_once_never_meet_in_one_temporary_file(tmp_path: Path) -> None:
    texts = [letter * 100_000 for letter in "abc"[:AUTHORS]]
    failures: list[BaseException] = []

    def write(text: str) -> None:
        try:
            for _ in range(ROUNDS):
                fs.write_text(tmp_path / "file", text, durable=False)
        except BaseException as error:
            failures.append(error)

    fs.write_text(tmp_path / "file", texts[0])
    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        assert (tmp_path / "file").read_text() in texts
    assert failures == []
    assert names(tmp_path) == ["file"]


KILLED = """
import os, signal, sys
from pathlib import Path
from onyx import fs

target = Path(sys.argv[1])
if target.is_dir():
    with fs.publish_directory(target) as part:
        (part / "x").write_text("new")
        os.kill(os.getpid(), signal.SIGKILL)
with fs.replace_file(target) as part:
    part.write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_kill_between_write_and_rename_leaves_the_old(tmp_path: Path, kind: str) -> None:
    target, file = (tmp_path / "file",) * 2 if kind == "file" else (tmp_path / "thing", tmp_path / "thing" / "x")
    file.parent.mkdir(exist_ok=True)
    file.write_text("old")
    died = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert file.read_text() == "old"
    assert len(names(tmp_path)) == 2
    fs.sweep(tmp_path)
    assert names(tmp_path) == [target.name]
    assert file.read_text() == "old"


def test_a_directory_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "above" / "thing"
    with fs.publish_directory(target) as part:
        (part / "file").write_text("one")
        assert not target.exists()
    assert (target / "file").read_text() == "one"
    assert names(target.parent) == ["thing"]


def test_a_failure_leaves_nothing_and_what_was_there_stays(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with fs.publish_directory(target) as part:
        (part / "file").write_text("one")
    with pytest.raises(IsADirectoryError), fs.publish_directory(target) as part:
        part.write_text("two")
    assert (target / "file").read_text() == "one"
    assert names(tmp_path) == ["thing"]


def test_the_later_directory_takes_the_place_of_the_former(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with fs.publish_directory(tmp_path / "thing") as part:
            (part / "file").write_text(text)
    assert (tmp_path / "thing" / "file").read_text() == "two"
    assert names(tmp_path) == ["thing"]


def test_a_directory_that_may_not_be_replaced_stays(tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "file").write_text("one")
    with pytest.raises(OSError, match="not empty"), fs.publish_directory(tmp_path / "thing", replace=False) as part:
        (part / "file").write_text("two")
    assert (tmp_path / "thing" / "file").read_text() == "one"
    assert names(tmp_path) == ["thing"]


def test_two_processes_may_publish_the_same_directory_at_once(tmp_path: Path) -> None:
    with fs.publish_directory(tmp_path / "thing") as one, fs.publish_directory(tmp_path / "thing") as two:
        (one / "file").write_text("one")
        (two / "file").write_text("two")
    assert (tmp_path / "thing" / "file").read_text() == "one"  # the outer context ends last
    assert names(tmp_path) == ["thing"]


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(out: Path) -> None:
        made.append(out)
        time.sleep(0.05)  # the others come meanwhile
        (out / "x").write_text("whole")

    threads = [threading.Thread(target=fs.make_once, args=(tmp_path / "a" / "b", make)) for _ in range(8)]
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

    fs.make_once(tmp_path / "b", make)
    assert (tmp_path / "b" / "x").read_text() == "first"
    assert names(tmp_path) == [".b.lock", "b"]


def test_a_failed_maker_leaves_nothing(tmp_path: Path) -> None:
    def make(out: Path) -> None:
        (out / "x").write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        fs.make_once(tmp_path / "b", make)
    assert names(tmp_path) == [".b.lock"]


def test_what_dead_makers_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, young = tmp_path / ".a.1.part", tmp_path / ".a.2.part"
    old.mkdir()
    young.mkdir()
    past = time.time() - fs.STALE_SECONDS - 60
    os.utime(old, (past, past))
    fs.make_once(tmp_path / "b", lambda out: None)
    assert not old.exists()
    assert young.exists()


def test_leftovers_of_the_killed_are_swept(tmp_path: Path) -> None:
    for name in (".thing.123.part", ".thing.9.gone", "thing"):
        (tmp_path / name).mkdir()
    (tmp_path / ".file.8.part").write_text("half")
    fs.sweep(tmp_path)
    assert names(tmp_path) == ["thing"]


def test_what_is_removed_is_gone_with_all_below(tmp_path: Path) -> None:
    (tmp_path / "thing" / "below").mkdir(parents=True)
    (tmp_path / "file").touch()
    fs.remove(tmp_path / "thing")
    fs.remove(tmp_path / "file")
    assert names(tmp_path) == []


def test_it_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import onyx.fs; "
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'onyx'}"


def test_leftovers_of_one_target_are_swept_without_those_of_other_names(tmp_path: Path) -> None:
    unique = "0123456789abcdef" * 2
    own = [tmp_path / f".state.{unique}.part", tmp_path / f".state.{unique}.gone"]
    others = [tmp_path / f".state.best.{unique}.part", tmp_path / ".state.mine.part", tmp_path / "state"]
    for path in (*own, *others):
        path.write_text("half")
    assert sorted(fs.temporary_names_of(tmp_path / "state")) == sorted(own)
    assert fs.sweep_leftovers_of(tmp_path / "state", older_than=60) == 1  # the one that was being removed
    assert fs.sweep_leftovers_of(tmp_path / "state") == 1
    assert names(tmp_path) == sorted(path.name for path in others)

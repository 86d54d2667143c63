import os
import subprocess
import sys
from pathlib import Path

from onyx.jobs.runner.runner_lock import is_locked, lock_path, locked_by, only_one


def test_one_process_holds_the_lock_and_names_itself(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert locked_by(tmp_path) is None
    with only_one(tmp_path, embedded=True) as first:
        assert first
        with only_one(tmp_path, embedded=False) as second:
            assert not second
        found = locked_by(tmp_path)
        assert found is not None
        assert (found.pid, found.embedded) == (os.getpid(), True)
    assert not is_locked(tmp_path)
    assert locked_by(tmp_path) is None, "the file of a free lock says nothing"


def test_a_holder_that_has_not_named_itself_yet(tmp_path: Path) -> None:
    with only_one(tmp_path, embedded=True):
        lock_path(tmp_path).write_text('{"pid":')
        assert is_locked(tmp_path)
        assert locked_by(tmp_path) is None


ASKING = """
import sys
from pathlib import Path
from onyx.jobs.runner.runner_lock import is_locked
print("up", flush=True)
while not (Path(sys.argv[1]) / "enough").exists():
    for _ in range(1000):
        is_locked(Path(sys.argv[1]))
"""


def test_asking_never_keeps_a_runner_from_starting(tmp_path: Path) -> None:
    with only_one(tmp_path, embedded=True):
        readers = [
            subprocess.Popen([sys.executable, "-c", ASKING, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(2)
        ]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"up\n"
        for _ in range(1000):
            with only_one(tmp_path, embedded=True) as taken:
                assert taken
                assert is_locked(tmp_path)
    finally:
        (tmp_path / "enough").touch()
        for reader in readers:
            reader.communicate()


def test_a_process_that_the_holder_starts_does_not_keep_the_lock(tmp_path: Path) -> None:
    with only_one(tmp_path, embedded=True):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_locked(tmp_path)
    child.communicate(b"\n")

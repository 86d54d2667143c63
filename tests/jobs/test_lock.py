import os
from pathlib import Path

from onyx.jobs.lock import is_locked, lock_path, locked_by, only_one


def test_one_holds_it_and_says_who_it_is(tmp_path: Path) -> None:
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
    assert locked_by(tmp_path) is None, "a file that nobody holds says nothing"


def test_a_holder_that_has_not_said_who_it_is(tmp_path: Path) -> None:
    with only_one(tmp_path, embedded=True):
        lock_path(tmp_path).write_text('{"pid":')
        assert is_locked(tmp_path)
        assert locked_by(tmp_path) is None

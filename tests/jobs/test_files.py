import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from onyx.jobs.files import close_directory, private_directory, private_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    former = os.umask(0)
    yield
    os.umask(former)


def test_new_files_and_directories_are_for_this_user_alone(tmp_path: Path) -> None:
    private_directory(tmp_path / "deep" / "home")
    private_file(tmp_path / "deep" / "home" / "onyx.db")
    assert mode(tmp_path / "deep" / "home") == 0o700
    assert mode(tmp_path / "deep" / "home" / "onyx.db") == 0o600


def test_an_operators_own_directory_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o750)
    private_directory(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o750


def test_an_existing_directory_of_sockets_is_closed_too(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o777)
    close_directory(tmp_path / "run")
    close_directory(tmp_path / "run")
    assert mode(tmp_path / "run") == 0o700


def test_a_file_that_is_there_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("kept")
    private_file(tmp_path / "f")
    assert (tmp_path / "f").read_text() == "kept"

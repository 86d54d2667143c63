"""Footprints of a test run are stored in a directory of its own, which its tests share."""

from pathlib import Path

import pytest

from tests.measured import share_measurements


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    share_measurements(home)
    return home


@pytest.fixture(autouse=True)
def home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONYX_HOME", str(shared_home))
    return shared_home

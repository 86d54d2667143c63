"""Footprints of a test run are stored in a directory of its own, which its tests share."""

from pathlib import Path

import pytest

from tests.planner_cache import share_planner_cache


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    share_planner_cache(home)
    return home


@pytest.fixture(autouse=True)
def home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONYX_HOME", str(shared_home))
    return shared_home

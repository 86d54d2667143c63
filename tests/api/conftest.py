"""A service for each test that uses the fixture `client`; `here` are its settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from onyx.settings import Settings
from tests.api import service


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return service.settings(tmp_path / "home")


@pytest.fixture
def client(here: Settings) -> Iterator[TestClient]:
    with service.service(here) as client:
        yield client

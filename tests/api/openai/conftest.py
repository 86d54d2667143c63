"""The app in this process, on a home of its own and without a runner: jobs are created and answered, but never run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from onyx.settings import Settings
from tests.api.service import service


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def client(home: Path) -> Iterator[TestClient]:
    with service(Settings(home=home, embedded_runner=False, upload_bytes=4096)) as client:
        yield client

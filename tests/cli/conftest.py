"""One real service for all commands, and commands run as an operator would."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onyx.cli import main
from tests.acceptance.onyx_serve import OnyxServe, onyx_serve


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Onyx = Callable[..., Ran]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnyxServe]:
    with onyx_serve(tmp_path_factory.mktemp("home")) as it:
        yield it


@pytest.fixture
def onyx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Onyx:
    """Run a command in this process, in a home and a directory of its own."""
    monkeypatch.setenv("ONYX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ONYX_CPU_MEMORY", "3GB")
    monkeypatch.setenv("ONYX_URL", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def remote(onyx: Onyx, service: OnyxServe, monkeypatch: pytest.MonkeyPatch) -> Onyx:
    """The same, and there is a service."""
    monkeypatch.setenv("ONYX_URL", service.url)
    return onyx

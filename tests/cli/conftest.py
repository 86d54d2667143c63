"""One real service for all tests of commands, and commands run as a user would."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onyx.cli import main
from tests.acceptance.onyx_serve import OnyxServe, onyx_serve


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Onyx = Callable[..., CommandResult]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnyxServe]:
    with onyx_serve(tmp_path_factory.mktemp("home")) as it:
        yield it


@pytest.fixture
def onyx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Onyx:
    """Run a command in this process, with an own home and working directory and without a service."""
    monkeypatch.setenv("ONYX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ONYX_CPU_MEMORY", "3GB")
    monkeypatch.setenv("ONYX_URL", "http://127.0.0.1:9")  # no process listens on this port
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> CommandResult:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        output = capsys.readouterr()
        return CommandResult(int(caught.value.code or 0), output.out, output.err)

    return run


@pytest.fixture
def remote(onyx: Onyx, service: OnyxServe, monkeypatch: pytest.MonkeyPatch) -> Onyx:
    """Run a command against the service."""
    monkeypatch.setenv("ONYX_URL", service.url)
    return onyx

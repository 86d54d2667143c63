"""A runner's state for other processes: a small file under ONYX_HOME/run, as an API process may see no GPU itself."""

import time
from pathlib import Path

from onyx.jobs.files import read_json, write_json
from onyx.memory.devices.device import Device
from onyx.training.contract.spec import Frozen

STALE_SECONDS = 60.0
"""An older bulletin is that of a dead runner."""


class Bulletin(Frozen):
    """A runner at one moment."""

    runner_id: str
    host: str
    time: float
    """Seconds since the epoch, by the host's clock."""

    events: int
    """Events that its jobs have written since it started."""

    trained_tokens: int
    """Label tokens that they have trained on since it started."""

    gpus: tuple[Device, ...] = ()
    """With their temperature, utilization and free memory."""


def post(run_dir: Path, bulletin: Bulletin) -> None:
    write_json(_path(run_dir, bulletin.host, bulletin.runner_id), bulletin, durable=False)


def take_down(run_dir: Path, host: str, runner_id: str) -> None:
    _path(run_dir, host, runner_id).unlink(missing_ok=True)


def read_all(run_dir: Path) -> list[Bulletin]:
    """The bulletins of living runners. Those of dead runners are deleted."""
    found = []
    for path in sorted(_folder(run_dir).glob("*.json")):
        bulletin = read_json(path, Bulletin)
        if bulletin is not None and time.time() - bulletin.time < STALE_SECONDS:
            found.append(bulletin)
        elif bulletin is not None:
            path.unlink(missing_ok=True)
    return found


def _path(run_dir: Path, host: str, runner_id: str) -> Path:
    """The name begins with the host, so that a health probe on that host finds its own runner's file."""
    return _folder(run_dir) / f"{host}.{runner_id}.json"


def _folder(run_dir: Path) -> Path:
    return run_dir / "runners"

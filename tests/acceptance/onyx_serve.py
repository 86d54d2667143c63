"""`onyx serve` as a process, as an operator starts it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from onyx.jobs.runner.runner_lock import LockedBy, locked_by
from tests.planner_cache import share_planner_cache
from tests.waiting import PATIENCE, wait_for

COMMAND = (sys.executable, "-m", "onyx.cli")
API = "/gradient-accumulation"
TEXTS = [f"the square of {n} is {n * n}, " * (1 + n % 5) for n in range(64)]


def environment(home: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONYX_")}
    return clean | {"ONYX_HOME": str(home), "ONYX_CPU_MEMORY": "3GB", "ONYX_LEASE_SECONDS": "6"} | more


class OnyxServe:
    """A running `onyx serve`."""

    def __init__(self, home: Path, *arguments: str, **more: str) -> None:
        self.run_dir = home / "run"
        self._log = (home / "serve.log").open("ab")
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", "--json", *arguments],
            env=environment(home, **more),
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (home / "serve.log").read_text()
        self.url: str = json.loads(line)["url"]

    def ask(self, method: str, path: str, **more: Any) -> Any:
        response = httpx.request(method, self.url + path, timeout=PATIENCE, **more)
        assert response.status_code < 300, response.text
        return response.json()

    def submit(self, epochs: int = 2, **training: Any) -> str:
        body = {
            "model_name": "onyx/tiny",
            "dataset_config": {"texts": TEXTS, "max_length": 96},
            "training_config": {"epochs": epochs, "learning_rate": 1e-3} | training,
            "user_id": 1,
            "target_effective_batch_size": 8,
        }
        return str(self.ask("POST", f"{API}/training/with-accumulation", json=body)["training_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"{API}/training/{job_id}"))

    def until(self, job_id: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.append(self.job(job_id))
            return reached(found[-1])

        wait_for(look, f"{job_id} gets there")
        return found[-1]

    def runner(self) -> LockedBy:
        """The runner of the same home. Waits until one has started."""
        wait_for(lambda: locked_by(self.run_dir) is not None, "a runner starts")
        found = locked_by(self.run_dir)
        assert found is not None
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self.close()
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


@contextmanager
def onyx_serve(home: Path, *arguments: str, **more: str) -> Iterator[OnyxServe]:
    """Start a service in this home, and stop it at the end."""
    share_planner_cache(home)
    it = OnyxServe(home, *arguments, **more)
    try:
        yield it
    finally:
        it.close()

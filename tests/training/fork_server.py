"""A fork server for tests, like the runner's: it has imported what a rank needs, so a start takes milliseconds."""

import gc
import json
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

SECONDS = 600.0
"""A rank that takes longer is taken to hang."""


class ForkServer:
    """The test's side of it."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=Path(__file__).parents[2],
        )

    def start(
        self,
        attempt: Path,
        rank: int,
        *,
        limits: dict[str, int] | None = None,
        hold: Sequence[int] = (),
        hook: str | None = None,
    ) -> int:
        """Fork a rank; its pid. `limits` are rlimits by name, `hook` is what it calls first, as module:function.

        After each update of `hold` the first rank waits for the test's release; at 0 every rank does, before its first.
        """
        log = attempt.parent / f"rank-{rank}.log"
        request = {"attempt": str(attempt), "rank": rank, "log": str(log), "limits": limits or {}, "hold": [*hold]}
        request["hook"] = hook
        return int(self._ask({"start": request}))

    def wait(self, pid: int, seconds: float = SECONDS) -> int:
        """Its exit code; negative for a signal. TimeoutError when it hangs."""
        return int(self._ask({"wait": pid}, seconds))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=SECONDS)
        self._process.stdout.close()

    def _ask(self, request: dict[str, Any], seconds: float = SECONDS) -> Any:
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        pipe.write(json.dumps(request).encode() + b"\n")
        pipe.flush()
        if not select.select([answers], [], [], seconds)[0]:
            if "wait" in request:
                os.kill(request["wait"], 9)
                answers.readline()
            raise TimeoutError(f"no answer to {request} for {seconds} s")
        return json.loads(answers.readline())


def _serve() -> None:
    import onyx.training.preload  # noqa: F401 - no fork has to import it

    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        answer = _fork(request["start"]) if "start" in request else _reap(request["wait"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _run_rank(request)
    return pid


def _run_rank(request: dict[str, Any]) -> NoReturn:
    import importlib
    import resource

    from onyx.training.rank.main import main
    from tests.training.uneven_kernels import install

    status = 1
    try:
        install()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name, value in request["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        if request["hook"]:
            module, _, name = request["hook"].partition(":")
            getattr(importlib.import_module(module), name)()
        if request["hold"]:
            _wait_at_updates(Path(request["attempt"]).parent, request["rank"], request["hold"])
        status = main(request["attempt"], request["rank"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _wait_at_updates(attempt: Path, rank: int, updates: list[int]) -> None:
    """Make rank 0 wait after it wrote the row of one of these updates, and at 0 every rank before its first window."""
    from onyx.training.contract.child_process import StopFlag
    from onyx.training.contract.metrics_csv import Metrics, Row

    add, listen = Metrics.add, StopFlag.listen

    def wait_at(update: int) -> None:
        (attempt / f"held-{update}-{rank}").touch()
        while not (attempt / f"release-{update}").exists():
            time.sleep(0.002)

    def add_and_wait(metrics: Metrics, row: Row) -> None:
        add(metrics, row)
        if row.update in updates and rank == 0:
            wait_at(row.update)

    def listen_and_wait(stop: StopFlag) -> StopFlag:
        listen(stop)
        if 0 in updates:
            wait_at(0)
        return stop

    Metrics.add, StopFlag.listen = add_and_wait, listen_and_wait  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    _serve()

"""Exit statuses and error.json."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onyx.training.contract.attempt import Exit
from onyx.training.contract.child_process import StopFlag
from onyx.training.contract.errors import UserError
from onyx.training.rank import main as rank
from onyx.training.rank.loop import Ending
from tests.training.job import Job
from tests.waiting import PATIENCE


@pytest.fixture
def attempt(job: Job, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An attempt whose `main` does not change signals, name or logging of this process."""
    monkeypatch.setattr(StopFlag, "listen", lambda self: self)
    monkeypatch.setattr(rank, "_set_up_process", lambda number: None)
    job.number = 1
    return job.write_attempt()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), Exit.MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory"), Exit.MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), Exit.MEMORY),
        (RuntimeError("Connection closed by peer"), 1),
        (KeyError("a bug"), 1),
        (UserError("not_finite", "lower it"), Exit.USER_ERROR),
        (OSError(28, "No space left on device"), Exit.USER_ERROR),
    ],
)
def test_each_failure_has_its_exit_status(
    attempt: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object) -> Ending:
        raise error

    monkeypatch.setattr(rank, "_train", fail)
    assert rank.main(str(attempt), "0") == status
    assert (attempt.parent / "error.json").exists() == (status == Exit.USER_ERROR)


@pytest.mark.parametrize(("ending", "status"), [(Ending.DONE, Exit.DONE), (Ending.STOPPED, Exit.SAVED)])
def test_each_ending_has_its_exit_status(
    attempt: Path, monkeypatch: pytest.MonkeyPatch, ending: Ending, status: int
) -> None:
    monkeypatch.setattr(rank, "_train", lambda *_: ending)
    assert rank.main(attempt, 0) == status


def test_memory_that_runs_out_after_the_vote_ends_the_attempt(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only forward and backward are tried again."""

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(StopFlag, "listen", lambda self: self)
    monkeypatch.setattr(rank, "_set_up_process", lambda number: None)
    monkeypatch.setattr(rank, "ready_device", lambda share, deterministic: None)
    job.number = 1
    path = job.write_attempt()
    monkeypatch.setattr("onyx.training.rank.loop.close", fail)
    assert rank.main(path, 0) == Exit.MEMORY


@pytest.mark.slow
def test_a_fresh_interpreter_and_its_lifeline(job: Job) -> None:
    """`python -m onyx.training.rank.main`, its name, and its end when the runner goes."""
    job.training = {"epochs": 1000}
    job.number = 1
    path = job.write_attempt()
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "onyx.training.rank.main", str(path), "0", str(reader)]
    with subprocess.Popen(command, pass_fds=(reader,), stderr=subprocess.DEVNULL) as process:
        os.close(reader)
        job.until(lambda: len(job.rows()) >= 5)
        assert Path(f"/proc/{process.pid}/comm").read_text() == "onyx-rank-0\n"
        os.close(writer)
        assert process.wait(timeout=PATIENCE) == 1

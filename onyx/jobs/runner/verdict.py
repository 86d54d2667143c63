"""Judges how an attempt ended, from the exits of its ranks and the files they left."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onyx.jobs.files import read_json
from onyx.jobs.launch.launcher import ChildExit
from onyx.jobs.runner.compose_attempt import rank_log
from onyx.jobs.status import Outcome
from onyx.memory.devices.cpu import ROOT, own_groups
from onyx.training.contract.attempt import Exit, Failure, Result

LOG_TAIL_BYTES = 2**16
"""Bytes at the end of a rank's log that are searched for the reason of its abort."""

_NO_MEMORY = re.compile(
    r"terminate called.*?(?:std::bad_alloc|can't allocate memory|cannot allocate memory|out of memory)"  # C++
    r"|memory allocation of \d+ bytes failed",  # Rust
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class Verdict:
    """What is recorded in the store."""

    outcome: Outcome
    why: str
    """For logs: which rank ended how."""

    result: Result | None = None
    failure: Failure | None = None


def judge(exits: Sequence[ChildExit], folder: Path, oom_killed: bool) -> Verdict:
    """The worst exit decides. An exit that should have left a file and did not counts as a lost attempt."""
    statuses = [each.status for each in exits]
    failure = read_json(folder / "error.json", Failure)
    if Exit.USER_ERROR in statuses and failure is not None:
        return Verdict(Outcome.FAILED, failure.message, failure=failure)
    result = read_json(folder / "result.json", Result)
    if all(status == Exit.DONE for status in statuses) and result is not None:
        return Verdict(Outcome.SUCCEEDED, "all ranks are done", result=result)
    aborted = any(_aborted_for_memory(each, rank_log(folder, rank)) for rank, each in enumerate(exits))
    if Exit.MEMORY in statuses or aborted or oom_killed:
        return Verdict(Outcome.MEMORY, describe(exits))
    if Exit.SAVED in statuses and all(status in (Exit.SAVED, Exit.DONE) for status in statuses):
        return Verdict(Outcome.SAVED, "all ranks have saved")
    return Verdict(Outcome.LOST, describe(exits))


def describe(exits: Sequence[ChildExit]) -> str:
    return ", ".join(f"rank {rank} {_how(each)}" for rank, each in enumerate(exits))


def _how(child_exit: ChildExit) -> str:
    if child_exit.signal is not None:
        return f"was killed by {signal.Signals(child_exit.signal).name}"
    if child_exit.status is None:
        return "ended in an unknown way"
    names = {status.value: status.name.lower().replace("_", " ") for status in Exit}
    return f"ended with {names.get(child_exit.status, f'status {child_exit.status}')}"


def oom_kills(root: Path = ROOT) -> int:
    """Processes of this control group that the kernel's OOM killer has killed; 0 where the kernel does not count them.

    Ranks are in the group of their runner. Other groups count other programs.
    """
    total = 0
    for group in own_groups("memory", root=root):
        for file in (group / "memory.events", group / "memory.oom_control"):  # version 2, version 1
            try:
                lines = file.read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def _aborted_for_memory(child_exit: ChildExit, log: Path) -> bool:
    """Whether native code aborted because it got no memory. It also aborts for other reasons, such as a lost peer."""
    if child_exit.signal != signal.SIGABRT:
        return False
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            tail = file.read(LOG_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return False
    return _NO_MEMORY.search(tail) is not None

"""How an attempt ended, from how its ranks did."""

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

LAST_WORDS = 2**16
"""Bytes at the end of a rank's log in which a reason for its abort is looked for."""

_NO_MEMORY = re.compile(
    r"terminate called.*?(?:std::bad_alloc|can't allocate memory|cannot allocate memory|out of memory)"  # C++
    r"|memory allocation of \d+ bytes failed",  # Rust
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class Verdict:
    """What the store is told."""

    outcome: Outcome
    why: str
    """For people: which rank, and how."""

    result: Result | None = None
    failure: Failure | None = None


def judge(ends: Sequence[ChildExit], folder: Path, oom_killed: bool) -> Verdict:
    """The worst that a rank says decides; files that are not there are not believed."""
    statuses = [end.status for end in ends]
    failure = read_json(folder / "error.json", Failure)
    if Exit.USER_ERROR in statuses and failure is not None:
        return Verdict(Outcome.FAILED, failure.message, failure=failure)
    result = read_json(folder / "result.json", Result)
    if all(status == Exit.DONE for status in statuses) and result is not None:
        return Verdict(Outcome.SUCCEEDED, "all ranks are done", result=result)
    aborted = any(_aborted_for_memory(end, rank_log(folder, rank)) for rank, end in enumerate(ends))
    if Exit.MEMORY in statuses or aborted or oom_killed:
        return Verdict(Outcome.MEMORY, describe(ends))
    if Exit.SAVED in statuses and all(status in (Exit.SAVED, Exit.DONE) for status in statuses):
        return Verdict(Outcome.SAVED, "all ranks have saved")
    return Verdict(Outcome.LOST, describe(ends))


def describe(ends: Sequence[ChildExit]) -> str:
    """Each rank's end by name."""
    return ", ".join(f"rank {rank} {_end(end)}" for rank, end in enumerate(ends))


def _end(end: ChildExit) -> str:
    if end.signal is not None:
        return f"was killed by {signal.Signals(end.signal).name}"
    if end.status is None:
        return "ended nobody knows how"
    names = {status.value: status.name.lower().replace("_", " ") for status in Exit}
    return f"ended with {names.get(end.status, f'status {end.status}')}"


def oom_kills(root: Path = ROOT) -> int:
    """How many processes of this one's control group the kernel's OOM killer has killed; 0 where that is not counted.

    Ranks are in the group of their runner. The counts of other groups tell of other programs.
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


def _aborted_for_memory(end: ChildExit, log: Path) -> bool:
    """Whether native code aborted because it got no memory. It aborts for much else, such as a peer that is gone."""
    if end.signal != signal.SIGABRT:
        return False
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_WORDS))
            said = file.read(LAST_WORDS).decode(errors="replace")
    except OSError:
        return False
    return _NO_MEMORY.search(said) is not None

"""How an attempt ended, from how its ranks did."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onyx.jobs.files import read_json
from onyx.jobs.status import Outcome
from onyx.jobs.work import Ended
from onyx.training.attempt import Exit, Failure, Result


@dataclass(frozen=True)
class Verdict:
    """What the store is told."""

    outcome: Outcome
    why: str
    """For people: which rank, and how."""

    result: Result | None = None
    failure: Failure | None = None


def judge(ends: Sequence[Ended], folder: Path, oom_killed: bool) -> Verdict:
    """The worst that a rank says decides; files that are not there are not believed."""
    statuses = [end.status for end in ends]
    failure = read_json(folder / "error.json", Failure)
    if Exit.USER_ERROR in statuses and failure is not None:
        return Verdict(Outcome.FAILED, failure.message, failure=failure)
    result = read_json(folder / "result.json", Result)
    if all(status == Exit.DONE for status in statuses) and result is not None:
        return Verdict(Outcome.SUCCEEDED, "all ranks are done", result=result)
    if Exit.MEMORY in statuses or any(end.signal == signal.SIGABRT for end in ends) or oom_killed:
        return Verdict(Outcome.MEMORY, describe(ends))
    if Exit.SAVED in statuses and all(status in (Exit.SAVED, Exit.DONE) for status in statuses):
        return Verdict(Outcome.SAVED, "all ranks have saved")
    return Verdict(Outcome.LOST, describe(ends))


def describe(ends: Sequence[Ended]) -> str:
    """Each rank's end by name."""
    return ", ".join(f"rank {rank} {_end(end)}" for rank, end in enumerate(ends))


def _end(end: Ended) -> str:
    if end.signal is not None:
        return f"was killed by {signal.Signals(end.signal).name}"
    if end.status is None:
        return "ended nobody knows how"
    names = {status.value: status.name.lower().replace("_", " ") for status in Exit}
    return f"ended with {names.get(end.status, f'status {end.status}')}"


def oom_kills(root: Path = Path("/")) -> int:
    """How often the kernel's OOM killer has struck in this process's control group; 0 where nobody counts."""
    total = 0
    for file in (root / "sys/fs/cgroup/memory.events", root / "sys/fs/cgroup/memory/memory.oom_control"):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total

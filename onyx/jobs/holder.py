"""Who holds a lease: a process that can be recognised, and known to be dead, by others on its host."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process. Pids are used again, so its start and the host's boot belong to its name."""

    host: str
    pid: int
    started: int
    """Clock ticks since boot when it started; 0 where the system does not tell."""

    boot: str
    """The host's boot id; empty where the system does not tell."""

    def is_dead(self, here: "Holder") -> bool:
        """Whether this process is known to be gone, seen from `here`. Of other hosts nothing is known."""
        if self.host != here.host:
            return False
        return self.boot != here.boot or start_of(self.pid) != self.started


def this_process() -> Holder:
    """The calling process."""
    return Holder(host=socket.gethostname(), pid=os.getpid(), started=start_of(os.getpid()) or 0, boot=boot_id())


def start_of(pid: int) -> int | None:
    """When the process with this pid started, if there is one that has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # a name may have spaces and brackets: count from behind it
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""

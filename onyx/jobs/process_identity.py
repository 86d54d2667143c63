"""Who holds a lease: a process that can be recognised, and known to be dead, by others on its host."""

import functools
import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

WHOLE_MACHINE = "pid:[4026531836]"
"""The kernel's fixed name of the view that shows all processes of a machine."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process. Pids are used again, so its start and the host's boot belong to its name."""

    host: str
    """Its hostname, and what tells it from others of that name."""

    pid: int
    started: int
    """Clock ticks since boot when it started; 0 where the system does not tell."""

    boot: str
    """The host's boot id; empty where the system does not tell."""

    def is_dead(self, here: "ProcessIdentity") -> bool:
        """Whether this process is known to be gone, seen from `here`. Of other hosts nothing is known."""
        if self.host != here.host:
            return False
        return self.boot != here.boot or start_of(self.pid) != self.started


def this_process() -> ProcessIdentity:
    """The calling process."""
    return ProcessIdentity(host=host_name(), pid=os.getpid(), started=start_of(os.getpid()) or 0, boot=boot_id())


@functools.cache
def host_name() -> str:
    """A name that two hosts never share: hostnames are often equal, of containers above all.

    Whoever has the same name sees the same processes. So a container is known by the kernel's boot and its own view of
    processes, and a machine by its id, which outlives a boot: processes from before it are then known to be gone.
    """
    processes = _link("/proc/self/ns/pid")
    machine = _text("/etc/machine-id") if processes == WHOLE_MACHINE else ""
    digest = hashlib.sha256(f"{machine or boot_id()} {processes}".encode()).hexdigest()[:12]
    return f"{socket.gethostname()[:200]}#{digest}"


def start_of(pid: int) -> int | None:
    """When the process with this pid started, if there is one that has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # a name may have spaces and brackets: count from behind it
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    return _text("/proc/sys/kernel/random/boot_id")


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""

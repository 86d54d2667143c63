"""Identity of a process, by which other processes on its host can tell that it has ended."""

import functools
import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

WHOLE_MACHINE = "pid:[4026531836]"
"""The kernel's fixed name of the pid namespace that has all processes of a machine."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process. Pids are reused, so its start and the host's boot are part of its identity."""

    host: str
    """See `host_name`."""

    pid: int
    started: int
    """Clock ticks since boot when it started; 0 where the system has no /proc."""

    boot: str
    """The host's boot id; empty where the system has no /proc."""

    def is_dead(self, here: "ProcessIdentity") -> bool:
        """Whether this process has ended, as far as the process `here` can know: nothing about other hosts."""
        if self.host != here.host:
            return False
        return self.boot != here.boot or start_of(self.pid) != self.started


def this_process() -> ProcessIdentity:
    """The calling process."""
    return ProcessIdentity(host=host_name(), pid=os.getpid(), started=start_of(os.getpid()) or 0, boot=boot_id())


@functools.cache
def host_name() -> str:
    """The hostname with a digest, since two hosts (containers above all) often have the same hostname.

    Processes with the same host name see the same pids. So the digest of a container is made from the kernel's boot id
    and the container's pid namespace. The digest of a machine is made from its machine id, which survives a boot: after
    one, the processes from before it are known to have ended.
    """
    processes = _link("/proc/self/ns/pid")
    machine = _text("/etc/machine-id") if processes == WHOLE_MACHINE else ""
    digest = hashlib.sha256(f"{machine or boot_id()} {processes}".encode()).hexdigest()[:12]
    return f"{socket.gethostname()[:200]}#{digest}"


def start_of(pid: int) -> int | None:
    """When the process with this pid started; None if there is none or it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # a name may contain spaces and brackets: count from its end
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    """The id of the kernel's current boot; empty where the system has no /proc."""
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

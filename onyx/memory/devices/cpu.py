"""
The CPU as a device: cores, and a memory budget that is enforced.

The budget is a setting (ONYX_CPU_MEMORY), else what the machine and this process's control groups allow. In a
training process an rlimit enforces it, so that running out raises an exception before the kernel's OOM killer acts.
"""

import logging
import os
import platform
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from onyx.memory.devices.device import GB, Device

logger = logging.getLogger(__name__)

ROOT = Path("/")  # where /proc and /sys are read; tests give another directory

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": GB, "T": 2**40}

# What torch says when the C++ allocator gets nothing, in its own words and in the C++ library's.
ALLOCATOR_MESSAGES = ("DefaultCPUAllocator: can't allocate memory", "std::bad_alloc")


def cpu_devices(count: int | None = None, memory: int | str | None = None, *, root: Path = ROOT) -> list[Device]:
    """The CPU in `count` slices (ONYX_CPU_DEVICES, default 1), which share its cores and memory budget."""
    count = _count(os.environ.get("ONYX_CPU_DEVICES", "1") if count is None else count)
    budget = cpu_budget(memory, root=root)
    free = cpu_free(budget, root=root)
    cores = cpu_cores(root=root)
    if count > cores:
        logger.warning("%d CPU devices share %d cores", count, cores, extra={"action": "cpu_crowded"})
    name = _model(root)
    return [
        Device(
            kind="cpu",
            index=index,
            name=name,
            memory_total=budget // count,
            memory_free=free // count,
            cores=max(1, cores // count + (index < cores % count)),
        )
        for index in range(count)
    ]


def cpu_budget(memory: int | str | None = None, *, root: Path = ROOT) -> int:
    """Bytes that training on the CPU may take: the argument, else ONYX_CPU_MEMORY, else what the machine allows."""
    if memory is None:
        memory = os.environ.get("ONYX_CPU_MEMORY") or None
    if memory is not None:
        return _bytes(memory)
    return min([_meminfo(root, "MemTotal"), *(limit for limit, _ in _memory_groups(root))])


def cpu_free(budget: int, *, root: Path = ROOT) -> int:
    """Bytes of the budget that can still be had. Page cache counts as free: the kernel gives it up first."""
    left = [limit - used for limit, used in _memory_groups(root)]
    return max(0, min([budget, _meminfo(root, "MemAvailable"), *left]))


def cpu_cores(*, root: Path = ROOT) -> int:
    """Cores this process may keep busy: its affinity mask, cut to the control groups' CPU quota."""
    quotas = [int(quota) for quota in _cpu_quotas(root)]  # a part of a core runs no further thread
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def limit_memory(budget: int) -> int:
    """
    Let this process allocate `budget` bytes more than it has, and return the limit in bytes.

    Call it after a warm-up micro-batch. By then torch's threads have made what they need; under the limit a
    thread's own allocation that fails aborts the process instead of raising.
    """
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise ValueError(f"budget must be a number of bytes above 0, not {budget!r}")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _kilobytes(ROOT / "proc/self/status", "VmData") + budget
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out, on a GPU or on the CPU, so that a smaller size may do."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")  # torch's own error exists only where torch is loaded
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in ALLOCATOR_MESSAGES)


def _count(value: int | str) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise ValueError(f"the number of CPU devices (ONYX_CPU_DEVICES) must be from 1 to 9999, not {value!r}")
    return int(text)


def _bytes(size: int | str) -> int:
    """Bytes of 8589934592, "8GB", "8GiB", "8 G" or "0.5g": units are powers of 1024, as for a card."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", str(size).upper(), re.ASCII)
    number = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if isinstance(size, bool) or number < 1:
        raise ValueError(f'the CPU\'s memory (ONYX_CPU_MEMORY) must be bytes or a size like "8GB", not {size!r}')
    return number


def _meminfo(root: Path, key: str) -> int:
    return _kilobytes(root / "proc/meminfo", key)


def _kilobytes(path: Path, key: str) -> int:
    """The bytes of a line like "MemTotal:  16384 kB"."""
    match = re.search(rf"^{key}:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{path} has no {key}")
    return int(match[1]) * 1024


def _model(root: Path) -> str:
    """The processor's name, which not every architecture reports."""
    try:
        match = re.search(r"^model name\s*:\s*(\S.*)$", (root / "proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.machine() or "CPU"


def _memory_groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of each control group above this process that limits memory."""
    for group in _groups(root, "memory"):
        # memory.high is not a hard limit, but a process beyond it is slowed to a halt.
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        limits = [limit for name in names if (limit := _number(group / name)) is not None]
        if limits:
            yield min(limits), _used(group)


def _used(group: Path) -> int:
    """Bytes that the group cannot give back: without the page cache, which the kernel reclaims first."""
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
    stat = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines())
    # Version 1 counts the group alone under these names and, with "total_", its children too; version 2 has
    # the sum only.
    cache = sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in ("active_file", "inactive_file"))
    return max(0, used - cache)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Cores' worth of time that each control group above this process allows."""
    for group in _groups(root, "cpu"):
        quota, _, period = _text(group / "cpu.max").strip().partition(" ")
        if not quota:
            quota = _text(group / "cpu.cfs_quota_us").strip()
            period = _text(group / "cpu.cfs_period_us").strip()
        if quota.isdecimal() and period.isdecimal():  # neither "max" nor -1
            yield int(quota) / int(period)


def own_groups(controller: str, *, root: Path = ROOT) -> list[Path]:
    """The directories of the control groups that this process itself is in: one of each version that is mounted."""
    return [group for group, *_ in _hierarchies(root, controller)]


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's control groups and of all above them."""
    for groups in _hierarchies(root, controller):
        yield from groups


def _hierarchies(root: Path, controller: str) -> Iterator[Iterator[Path]]:
    """This process's own group and those above it, upwards, in version 2 and in version 1."""
    own: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))  # version 2 names no controller: ""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        place, _, system = line.partition(" - ")
        mounted, point = place.split()[3:5]
        kind, *_, options = system.split()
        name = "" if kind == "cgroup2" else controller
        if name in own and (kind == "cgroup2" or (kind == "cgroup" and controller in options.split(","))):
            yield _upwards(root / point.lstrip("/"), own[name], mounted)


def _upwards(top: Path, path: str, mounted: str) -> Iterator[Path]:
    """From the group at `path` up to the mount point, which shows the hierarchy from `mounted` down."""
    group = PurePosixPath(path)
    # Outside of what is mounted (a container that sees only its own part), the mount point is all there is.
    inside = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
    if ".." in inside.parts:
        inside = PurePosixPath()
    yield top / inside
    yield from (top / parent for parent in inside.parents)


def _text(path: Path) -> str:
    """A file's text, "" where it is missing: the root group has no limits, and not every host has groups."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None  # "max" is no limit

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onyx.memory.devices.cpu import cpu_budget, cpu_cores, cpu_devices, cpu_free, is_out_of_memory, limit_memory

GB = 2**30
UNLIMITED_V1 = str(2**63 - 4096)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONYX_CPU_MEMORY", raising=False)
    monkeypatch.delenv("ONYX_CPU_DEVICES", raising=False)


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 cores, whatever the one at hand."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


class Host:
    """A host's /proc and /sys as real files: 64 GB, of which 48 GB are available."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal:       {64 * 2**20} kB\nMemAvailable:   {48 * 2**20} kB\n")
        self.write("proc/self/cgroup", "")
        self.write("proc/self/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}")

    def append(self, path: str, text: str) -> None:
        self.write(path, (self.root / path).read_text() + text)

    def mount_v2(self, own: str, point: str = "/sys/fs/cgroup", mounted: str = "/") -> None:
        self.append("proc/self/cgroup", f"0::{own}\n")
        self.append("proc/self/mountinfo", f"30 22 0:26 {mounted} {point} rw - cgroup2 cgroup2 rw,nsdelegate\n")

    def mount_v1(self, controllers: str, own: str, mounted: str = "/") -> None:
        point = f"/sys/fs/cgroup/{controllers}"
        self.append("proc/self/cgroup", f"4:{controllers}:{own}\n")
        self.append("proc/self/mountinfo", f"35 31 0:32 {mounted} {point} rw - cgroup cgroup rw,{controllers}\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_without_groups_the_budget_is_the_machine(host: Host) -> None:
    assert cpu_budget(root=host.root) == 64 * GB
    assert cpu_free(64 * GB, root=host.root) == 48 * GB


def test_v2_limit_and_use_without_page_cache(host: Host) -> None:
    host.mount_v2("/onyx")
    host.write("sys/fs/cgroup/onyx/memory.max", 8 * GB)
    host.write("sys/fs/cgroup/onyx/memory.high", "max")
    host.write("sys/fs/cgroup/onyx/memory.current", 5 * GB)
    host.write("sys/fs/cgroup/onyx/memory.stat", f"anon {2 * GB}\nactive_file {GB}\ninactive_file {2 * GB}\n")
    assert cpu_budget(root=host.root) == 8 * GB
    assert cpu_free(8 * GB, root=host.root) == 6 * GB


def test_v2_max_is_no_limit(host: Host) -> None:
    host.mount_v2("/onyx")
    host.write("sys/fs/cgroup/onyx/memory.max", "max\n")
    assert cpu_budget(root=host.root) == 64 * GB


def test_v2_high_counts_as_a_limit(host: Host) -> None:
    host.mount_v2("/onyx")
    host.write("sys/fs/cgroup/onyx/memory.max", 8 * GB)
    host.write("sys/fs/cgroup/onyx/memory.high", 6 * GB)
    assert cpu_budget(root=host.root) == 6 * GB


def test_the_tightest_group_on_the_way_up_counts(host: Host) -> None:
    host.mount_v2("/system.slice/onyx.service/rank")
    top = "sys/fs/cgroup/system.slice"
    host.write(f"{top}/memory.max", 16 * GB)
    host.write(f"{top}/memory.current", 15 * GB)
    host.write(f"{top}/onyx.service/memory.max", 8 * GB)
    host.write(f"{top}/onyx.service/rank/memory.max", "max")
    host.write("sys/fs/cgroup/other.slice/memory.max", GB)
    assert cpu_budget(root=host.root) == 8 * GB
    assert cpu_free(8 * GB, root=host.root) == 1 * GB  # what a neighbour left in the slice above


def test_v1_limit_use_and_children(host: Host) -> None:
    host.mount_v1("memory", "/docker/abc")
    group = "sys/fs/cgroup/memory/docker/abc"
    host.write(f"{group}/memory.limit_in_bytes", 4 * GB)
    host.write(f"{group}/memory.usage_in_bytes", 3 * GB)
    host.write(f"{group}/memory.stat", f"active_file 0\ntotal_active_file {GB}\ntotal_inactive_file {GB}\n")
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED_V1)
    assert cpu_budget(root=host.root) == 4 * GB
    assert cpu_free(4 * GB, root=host.root) == 3 * GB


def test_v1_unlimited_is_the_machine(host: Host) -> None:
    host.mount_v1("memory", "/")
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED_V1)
    assert cpu_budget(root=host.root) == 64 * GB


def test_a_container_sees_its_own_group_at_the_mount_point(host: Host) -> None:
    host.mount_v1("memory", "/docker/abc", mounted="/docker/abc")
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", 2 * GB)
    assert cpu_budget(root=host.root) == 2 * GB


@pytest.mark.parametrize("own", ["/../../elsewhere", "/elsewhere/x"])
def test_a_group_outside_of_the_mount_falls_back_to_the_mount_point(host: Host, own: str) -> None:
    host.mount_v2(own, mounted="/kubepods" if own.startswith("/else") else "/")
    host.write("sys/fs/cgroup/memory.max", 2 * GB)
    host.write("sys/elsewhere/memory.max", 1)  # where "/../../elsewhere" would lead
    assert cpu_budget(root=host.root) == 2 * GB


def test_hybrid_memory_in_v1_beside_a_v2_tree_without_it(host: Host) -> None:
    host.mount_v1("memory", "/onyx")
    host.mount_v2("/onyx", point="/sys/fs/cgroup/unified")
    host.write("sys/fs/cgroup/memory/onyx/memory.limit_in_bytes", 3 * GB)
    host.write("sys/fs/cgroup/unified/onyx/cgroup.procs", "1\n")
    assert cpu_budget(root=host.root) == 3 * GB


def test_free_is_never_negative(host: Host) -> None:
    host.mount_v2("/")
    host.write("sys/fs/cgroup/memory.max", GB)
    host.write("sys/fs/cgroup/memory.current", 2 * GB)
    assert cpu_free(GB, root=host.root) == 0


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (123, 123),
        ("8589934592", 8 * GB),
        ("8GB", 8 * GB),
        ("8GiB", 8 * GB),
        (" 0.5 g ", GB // 2),
        ("512mb", GB // 2),
        ("1T", 1024 * GB),
        ("2048K", 2**21),
        ("7b", 7),
    ],
)
def test_a_setting_wins_in_many_spellings(
    host: Host, monkeypatch: pytest.MonkeyPatch, setting: int | str, expected: int
) -> None:
    assert cpu_budget(setting, root=host.root) == expected
    monkeypatch.setenv("ONYX_CPU_MEMORY", str(setting))
    assert cpu_budget(root=host.root) == expected
    assert cpu_budget("1GB", root=host.root) == GB  # the argument before the environment


@pytest.mark.parametrize("setting", ["much", "-1GB", "0", "8XB", "1e9", "nan", 0, -5, True, "9" * 400])
def test_a_senseless_setting_is_refused(setting: int | str) -> None:
    with pytest.raises(ValueError, match="ONYX_CPU_MEMORY"):
        cpu_budget(setting)


@pytest.mark.usefixtures("many_cores")
def test_cores_are_cut_to_the_quota(host: Host) -> None:
    assert cpu_cores(root=host.root) == 8
    host.mount_v2("/onyx")
    host.write("sys/fs/cgroup/onyx/cpu.max", "max 100000\n")
    assert cpu_cores(root=host.root) == 8
    host.write("sys/fs/cgroup/onyx/cpu.max", "350000 100000\n")
    assert cpu_cores(root=host.root) == 3
    host.write("sys/fs/cgroup/onyx/cpu.max", "50000 100000\n")
    assert cpu_cores(root=host.root) == 1


@pytest.mark.usefixtures("many_cores")
def test_cores_are_cut_to_the_quota_of_v1(host: Host) -> None:
    host.mount_v1("cpu,cpuacct", "/onyx")
    host.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", -1)
    host.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", 100000)
    assert cpu_cores(root=host.root) == 8
    host.write("sys/fs/cgroup/cpu,cpuacct/onyx/cpu.cfs_quota_us", 200000)
    host.write("sys/fs/cgroup/cpu,cpuacct/onyx/cpu.cfs_period_us", 100000)
    assert cpu_cores(root=host.root) == 2


@pytest.mark.usefixtures("many_cores")
def test_slices_share_cores_and_memory(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7B13\n")
    monkeypatch.setenv("ONYX_CPU_DEVICES", "3")
    devices = cpu_devices(root=host.root)
    assert [device.label for device in devices] == ["cpu:0", "cpu:1", "cpu:2"]
    assert [device.cores for device in devices] == [3, 3, 2]
    assert {device.name for device in devices} == {"AMD EPYC 7B13"}
    assert {device.memory_total for device in devices} == {64 * GB // 3}
    assert {device.memory_free for device in devices} == {48 * GB // 3}


@pytest.mark.usefixtures("many_cores")
def test_more_slices_than_cores_have_one_each_and_say_so(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    assert [device.cores for device in cpu_devices(9, root=host.root)] == [1] * 9
    assert "9 CPU devices share 8 cores" in caplog.text


def test_the_free_memory_of_a_setting_is_at_most_the_setting(host: Host) -> None:
    (device,) = cpu_devices(memory="8GB", root=host.root)
    assert (device.memory_total, device.memory_free) == (8 * GB, 8 * GB)


@pytest.mark.parametrize("count", [0, -1, True, "two", "1.5", ""])
def test_a_senseless_number_of_slices_is_refused(host: Host, count: int) -> None:
    with pytest.raises(ValueError, match="ONYX_CPU_DEVICES"):
        cpu_devices(count, root=host.root)


def test_this_machine_has_a_cpu() -> None:
    (device,) = cpu_devices()
    assert device.cores is not None
    assert 0 < device.memory_free <= device.memory_total


def test_out_of_memory_in_its_three_shapes() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_other_errors_are_not_out_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(KeyboardInterrupt())


@pytest.mark.parametrize("budget", [0, -1, True, 1.5])
def test_a_senseless_budget_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match="budget"):
        limit_memory(budget)


TRAINING = """
import resource
import torch
from onyx.memory.devices.cpu import is_out_of_memory, limit_memory

model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 256))
optimizer = torch.optim.AdamW(model.parameters())

def step(samples):
    loss = model(torch.ones(samples, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

step(8)
limit = limit_memory(100 * 2**20)
ran_out = []
for samples in (64, 16384, 64, 16384, 1024):   # 16384 samples need 256 MB in the first layer alone
    failed = False
    try:
        step(samples)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failed = True
    if failed:
        optimizer.zero_grad()
        ran_out.append(samples)
assert ran_out == [16384, 16384], ran_out
assert resource.getrlimit(resource.RLIMIT_DATA)[0] == limit
assert all(p.isfinite().all() for p in model.parameters())
"""


def test_training_under_the_limit_runs_out_and_goes_on() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.run(
        [sys.executable, "-c", TRAINING], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert (child.returncode, child.stderr) == (0, "")


WITHOUT_TORCH = """
import sys
from onyx.memory.devices import cpu, device, gpus
cpu.cpu_devices()
gpus.gpu_info(gpus.list_gpus())
assert cpu.is_out_of_memory(MemoryError()) and not cpu.is_out_of_memory(RuntimeError("no"))
cpu.limit_memory(64 * 2**20)
try:
    bytearray(2**30)
except MemoryError:
    print("ran out")
assert "torch" not in sys.modules
"""


def test_nothing_here_needs_torch() -> None:
    child = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=600, check=False
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "ran out\n", "")

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from onyx.jobs import process_identity
from onyx.jobs.process_identity import WHOLE_MACHINE, host_name, start_of, this_process


def test_a_living_process_is_not_dead() -> None:
    here = this_process()
    assert here.pid == os.getpid()
    assert not here.is_dead(here)


def test_a_process_that_ended_is_dead_also_before_it_is_reaped() -> None:
    here = this_process()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = dataclasses.replace(here, pid=child.pid, started=start_of(child.pid) or 0)
    assert not holder.is_dead(here)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
    assert holder.is_dead(here)
    child.communicate()
    assert holder.is_dead(here)


def test_a_pid_that_was_used_again_is_another_process() -> None:
    here = this_process()
    assert dataclasses.replace(here, started=here.started - 1).is_dead(here)


def test_a_boot_ends_all_processes_and_other_hosts_are_unknown() -> None:
    here = this_process()
    assert dataclasses.replace(here, boot="before").is_dead(here)
    assert not dataclasses.replace(here, host="elsewhere", pid=1).is_dead(here)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], str]:
    """The name of a host with this machine id, boot id and pid namespace."""

    def name(machine: str, boot: str, processes: str) -> str:
        files = {"/etc/machine-id": machine, "/proc/sys/kernel/random/boot_id": boot}
        monkeypatch.setattr(process_identity, "_text", files.__getitem__)
        monkeypatch.setattr(process_identity, "_link", lambda _: processes)
        return host_name.__wrapped__()

    return name


def test_hosts_of_one_hostname_have_different_names(named: Callable[[str, str, str], str]) -> None:
    here = named("m1", "b1", WHOLE_MACHINE)
    assert here.startswith(f"{socket.gethostname()}#")
    assert named("m2", "b2", WHOLE_MACHINE) != here
    assert named("m1", "b2", WHOLE_MACHINE) == here  # a boot does not make another machine
    assert named("", "b1", WHOLE_MACHINE) != named("", "b2", WHOLE_MACHINE)  # without a machine id, the boot decides


def test_containers_of_one_image_have_different_names(named: Callable[[str, str, str], str]) -> None:
    here = named("image's", "b1", "pid:[4026532250]")
    assert named("image's", "b1", "pid:[4026532251]") != here  # on the same machine
    assert named("image's", "b2", "pid:[4026532250]") != here  # on another


def test_the_name_is_the_same_in_every_process_of_a_host() -> None:
    code = "from onyx.jobs.process_identity import host_name; print(host_name())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == this_process().host

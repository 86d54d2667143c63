import dataclasses
import os
import subprocess
import sys

from onyx.jobs.holder import start_of, this_process


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


def test_a_boot_ends_all_and_other_hosts_are_not_known() -> None:
    here = this_process()
    assert dataclasses.replace(here, boot="before").is_dead(here)
    assert not dataclasses.replace(here, host="elsewhere", pid=1).is_dead(here)

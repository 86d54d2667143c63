"""How an attempt ended, judged from the exits of its ranks and the files they left."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onyx.jobs.launch.launcher import ChildExit
from onyx.jobs.runner.compose_attempt import rank_log
from onyx.jobs.runner.verdict import LOG_TAIL_BYTES, judge, oom_kills
from onyx.jobs.status import Outcome
from onyx.training.contract.attempt import Exit
from tests.jobs.store_harness import FAILURE, RESULT

DONE, SAVED, MEMORY, USER = (ChildExit(status) for status in (Exit.DONE, Exit.SAVED, Exit.MEMORY, Exit.USER_ERROR))
KILLED, ABORTED, ILLEGAL = (ChildExit(None, number) for number in (signal.SIGKILL, signal.SIGABRT, signal.SIGILL))


@pytest.mark.parametrize(
    ("exits", "oom_killed", "outcome"),
    [
        ([DONE, DONE], False, Outcome.LOST),  # without result.json
        ([SAVED, SAVED], False, Outcome.SAVED),
        ([SAVED, DONE], False, Outcome.SAVED),
        ([SAVED, KILLED], False, Outcome.LOST),
        ([KILLED, ChildExit(1)], False, Outcome.LOST),
        ([KILLED, ChildExit(1)], True, Outcome.MEMORY),
        ([ABORTED, ChildExit(1)], False, Outcome.LOST),  # an abort alone says nothing about memory
        ([ABORTED, ChildExit(1)], True, Outcome.MEMORY),
        ([MEMORY, ChildExit(1)], False, Outcome.MEMORY),
        ([USER, ChildExit(1)], False, Outcome.LOST),  # without error.json
        ([ChildExit(None)], False, Outcome.LOST),
    ],
)
def test_the_worst_exit_decides(tmp_path: Path, exits: list[ChildExit], oom_killed: bool, outcome: Outcome) -> None:
    assert judge(exits, tmp_path, oom_killed=oom_killed).outcome is outcome


def test_a_result_counts_when_all_are_done(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(RESULT.model_dump_json())
    assert judge([DONE, DONE], tmp_path, oom_killed=False).result == RESULT
    assert judge([DONE, KILLED], tmp_path, oom_killed=False).outcome is Outcome.LOST


def test_a_users_error_wins_over_all(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text(FAILURE.model_dump_json())
    verdict = judge([MEMORY, USER, KILLED], tmp_path, oom_killed=True)
    assert (verdict.outcome, verdict.failure) == (Outcome.FAILED, FAILURE)


def test_every_exit_is_described(tmp_path: Path) -> None:
    why = judge([ILLEGAL, ChildExit(1), MEMORY, ChildExit(None)], tmp_path, oom_killed=False).why
    assert why.split(", ") == [
        "rank 0 was killed by SIGILL",
        "rank 1 ended with status 1",
        "rank 2 ended with memory",
        "rank 3 ended in an unknown way",
    ]


BAD_ALLOC = "import ctypes; ctypes.CDLL('libstdc++.so.6')._Znwm(ctypes.c_size_t(2**62))"
ABORT = "print('out of memory: the micro-batch is cut finer', flush=True); import os; os.abort()"


@pytest.mark.parametrize(("code", "outcome"), [(BAD_ALLOC, Outcome.MEMORY), (ABORT, Outcome.LOST)])
def test_an_abort_is_memory_only_where_the_process_says_so(tmp_path: Path, code: str, outcome: Outcome) -> None:
    with rank_log(tmp_path, 1).open("wb") as log:
        ended = subprocess.run([sys.executable, "-c", code], stdout=log, stderr=log, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert judge([ChildExit(1), ABORTED], tmp_path, oom_killed=False).outcome is outcome


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("memory allocation of 98304 bytes failed\n", Outcome.MEMORY),
        (
            "terminate called after throwing an instance of 'c10::Error'\n"
            "  what():  [enforce fail at alloc_cpu.cpp:127] err == 0. "
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000 bytes.\n",
            Outcome.MEMORY,
        ),
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  timed out\n",
            Outcome.LOST,
        ),
        ("memory allocation of 98304 bytes failed\n" + "later\n" * LOG_TAIL_BYTES, Outcome.LOST),
    ],
)
def test_messages_of_native_code_that_aborts(tmp_path: Path, message: str, outcome: Outcome) -> None:
    rank_log(tmp_path, 0).write_text(message)
    assert judge([ABORTED], tmp_path, oom_killed=False).outcome is outcome


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


EVENTS = "low 0\noom 9\noom_kill {}\noom_group_kill 1\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def test_kills_are_counted_in_the_own_group_of_version_2(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    write(tmp_path / "proc/self/cgroup", "0::/system.slice/onyx.service\n")
    write(tmp_path / "proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert oom_kills(tmp_path) == 0
    top = tmp_path / "sys/fs/cgroup"
    write(top / "memory.events", EVENTS.format(500))
    write(top / "system.slice/memory.events", EVENTS.format(50))
    write(top / "system.slice/other.service/memory.events", EVENTS.format(40))
    write(top / "system.slice/onyx.service/memory.events", EVENTS.format(3))
    assert oom_kills(tmp_path) == 3


def test_kills_are_counted_in_the_own_group_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "5:cpu:/elsewhere\n4:memory:/docker/abc\n0::/\n")
    write(
        tmp_path / "proc/self/mountinfo",
        "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    )
    top = tmp_path / "sys/fs/cgroup/memory"
    write(top / "memory.oom_control", CONTROL.format(500))
    write(top / "docker/abc/memory.oom_control", CONTROL.format(4))
    assert oom_kills(tmp_path) == 4


def test_a_container_that_sees_only_its_own_part_counts_there(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/abc\n")
    write(
        tmp_path / "proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    )
    write(tmp_path / "sys/fs/cgroup/memory/memory.oom_control", CONTROL.format(2))
    assert oom_kills(tmp_path) == 2

"""How an attempt ended, from how its ranks did."""

import signal
from pathlib import Path

import pytest

from onyx.jobs.status import Outcome
from onyx.jobs.verdict import judge, oom_kills
from onyx.jobs.work import Ended
from onyx.training.attempt import Exit
from tests.jobs.world import FAILURE, RESULT

DONE, SAVED, MEMORY, USER = (Ended(status) for status in (Exit.DONE, Exit.SAVED, Exit.MEMORY, Exit.USER_ERROR))
KILLED, ABORTED, ILLEGAL = (Ended(None, number) for number in (signal.SIGKILL, signal.SIGABRT, signal.SIGILL))


@pytest.mark.parametrize(
    ("ends", "oom_killed", "outcome"),
    [
        ([DONE, DONE], False, Outcome.LOST),  # without result.json nobody is believed
        ([SAVED, SAVED], False, Outcome.SAVED),
        ([SAVED, DONE], False, Outcome.SAVED),
        ([SAVED, KILLED], False, Outcome.LOST),
        ([KILLED, Ended(1)], False, Outcome.LOST),
        ([KILLED, Ended(1)], True, Outcome.MEMORY),
        ([ABORTED, Ended(1)], False, Outcome.MEMORY),
        ([MEMORY, Ended(1)], False, Outcome.MEMORY),
        ([USER, Ended(1)], False, Outcome.LOST),  # without error.json there is nothing to tell the user
        ([Ended(None)], False, Outcome.LOST),
    ],
)
def test_the_worst_that_a_rank_says_decides(
    tmp_path: Path, ends: list[Ended], oom_killed: bool, outcome: Outcome
) -> None:
    assert judge(ends, tmp_path, oom_killed=oom_killed).outcome is outcome


def test_a_result_counts_when_all_are_done(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(RESULT.model_dump_json())
    assert judge([DONE, DONE], tmp_path, oom_killed=False).result == RESULT
    assert judge([DONE, KILLED], tmp_path, oom_killed=False).outcome is Outcome.LOST


def test_a_users_mistake_wins_over_all(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text(FAILURE.model_dump_json())
    verdict = judge([MEMORY, USER, KILLED], tmp_path, oom_killed=True)
    assert (verdict.outcome, verdict.failure) == (Outcome.FAILED, FAILURE)


def test_every_end_has_a_name(tmp_path: Path) -> None:
    why = judge([ILLEGAL, Ended(1), MEMORY, Ended(None)], tmp_path, oom_killed=False).why
    assert why.split(", ") == [
        "rank 0 was killed by SIGILL",
        "rank 1 ended with status 1",
        "rank 2 ended with memory",
        "rank 3 ended nobody knows how",
    ]


def test_kills_of_the_kernel_are_counted(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    events = tmp_path / "sys/fs/cgroup/memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("oom 9\noom_kill 3\noom_group_kill 1\n")
    assert oom_kills(tmp_path) == 3

import itertools

import pytest

from onyx.jobs.errors import NotAllowedError
from onyx.jobs.status import ALLOWED, OPEN, TERMINAL, JobStatus, check_change


def test_terminal_is_final() -> None:
    assert {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED} == TERMINAL
    for old, new in itertools.product(TERMINAL, JobStatus):
        with pytest.raises(NotAllowedError, match="a finished job never changes"):
            check_change("j", old, new)


def test_the_table_has_every_status_and_each_can_end() -> None:
    assert set(ALLOWED) == set(JobStatus)
    assert set(JobStatus) == OPEN | TERMINAL
    for status in OPEN:
        assert JobStatus.CANCELLED in ALLOWED[status]


def test_only_an_attempt_makes_a_job_run_or_succeed() -> None:
    assert [old for old in JobStatus if JobStatus.RUNNING in ALLOWED[old]] == [JobStatus.QUEUED]
    assert [old for old in JobStatus if JobStatus.SUCCEEDED in ALLOWED[old]] == [JobStatus.RUNNING]

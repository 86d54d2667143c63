from onyx.jobs.runner.runner_context import JobTally
from onyx.training.contract.attempt import Event


def said(tokens: int | None, line: int = 1) -> Event:
    data = {} if tokens is None else {"trained_tokens": tokens}
    return Event(line=line, time=0.0, kind="metrics", message="", data=data)


def test_tokens_are_counted_once_however_they_are_told() -> None:
    tally = JobTally()
    before = tally.heard([said(100), said(150, 2)], 0)
    before = tally.heard([said(None)], before)
    before = tally.heard([said(220)], before)
    assert (tally.events, tally.trained_tokens, before) == (4, 220, 220)


def test_what_a_job_did_under_another_runner_is_not_this_ones() -> None:
    tally = JobTally()
    assert tally.heard([said(90), said(130, 2)], 100) == 130
    assert tally.trained_tokens == 30

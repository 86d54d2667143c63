from onyx.jobs.runner.runner_context import JobTally
from onyx.training.contract.attempt import Event


def event(tokens: int | None, line: int = 1) -> Event:
    data = {} if tokens is None else {"trained_tokens": tokens}
    return Event(line=line, time=0.0, kind="metrics", message="", data=data)


def test_tokens_are_counted_once_however_often_they_are_reported() -> None:
    tally = JobTally()
    before = tally.add([event(100), event(150, 2)], 0)
    before = tally.add([event(None)], before)
    before = tally.add([event(220)], before)
    assert (tally.events, tally.trained_tokens, before) == (4, 220, 220)


def test_tokens_of_a_former_runner_are_not_counted() -> None:
    tally = JobTally()
    assert tally.add([event(90), event(130, 2)], 100) == 130
    assert tally.trained_tokens == 30

import math

import pytest

from onyx.jobs.errors import BadValueError, LostAttempt
from onyx.jobs.status import Outcome
from onyx.training.contract.attempt import Event
from tests.jobs.store_harness import DEVICES, RESULT, StoreHarness, line, metrics


async def test_each_line_is_stored_once_and_numbers_have_no_gap(harness: StoreHarness) -> None:
    claimed = await harness.running()
    store, job_id = harness.store, claimed.job.id
    assert await store.events.mirror(claimed.lease, [line(1), line(2)]) == 2
    assert await store.events.mirror(claimed.lease, [line(2), line(4), line(4), line(1)]) == 1
    assert await store.events.mirror(claimed.lease, [line(3)]) == 1
    assert await store.events.mirror(claimed.lease, []) == 0
    events = await store.events.list(job_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.line for event in events if event.line] == [1, 2, 4, 3]
    assert await store.events.last_line(job_id, claimed.lease.attempt) == 4
    assert await store.events.last_line(job_id, 99) == 0


async def test_pages_in_both_directions(harness: StoreHarness) -> None:
    claimed = await harness.running()
    store, job_id = harness.store, claimed.job.id
    await store.events.mirror(claimed.lease, [line(number) for number in range(1, 8)])
    forward = await store.events.list(job_id)
    assert await store.events.list(job_id, after=4, limit=3) == forward[4:7]
    assert await store.events.list(job_id, newest_first=True) == forward[::-1]
    assert await store.events.list(job_id, newest_first=True, after=5, limit=2) == forward[2:4][::-1]
    assert await store.events.list(job_id, after=forward[-1].seq) == ()
    for limit in (0, 1001):
        with pytest.raises(BadValueError, match="limit"):
            await store.events.list(job_id, limit=limit)


async def test_the_runner_that_takes_over_mirrors_the_rest(harness: StoreHarness) -> None:
    dead, heir = await harness.runner(pid=1), await harness.runner(pid=2)
    first = await harness.running(runner=dead)
    store, job_id = harness.store, first.job.id
    await store.events.mirror(first.lease, [line(1)])
    with pytest.raises(LostAttempt):  # it is live: its lines are its own runner's
        await store.events.mirror_ended(heir, job_id, first.lease.attempt, [line(2)])
    (record,) = [runner for runner in await store.runners.list() if runner.id == dead]
    await store.runners.replace_dead(heir, record)
    with pytest.raises(LostAttempt):
        await store.events.mirror_ended(dead, job_id, first.lease.attempt, [line(2)])
    second = await store.claims.claim_queued(heir, DEVICES)
    assert second is not None
    await store.events.mirror(second.lease, [line(1, "second")])
    assert await store.events.mirror_ended(heir, job_id, first.lease.attempt, [line(1), line(2)]) == 1
    lines = [(event.attempt, event.line) for event in await store.events.list(job_id) if event.line]
    assert lines == [(first.lease.attempt, 1), (second.lease.attempt, 1), (first.lease.attempt, 2)]


async def test_a_runner_that_holds_its_job_again_may_mirror_what_it_lost(harness: StoreHarness) -> None:
    runner = await harness.runner()
    first = await harness.running(runner=runner)
    await harness.store.attempts.release(first.lease, Outcome.LOST)
    with pytest.raises(LostAttempt):
        await harness.store.events.mirror_ended(runner, first.job.id, first.lease.attempt, [line(1)])
    assert await harness.store.claims.claim_queued(runner, DEVICES) is not None
    assert await harness.store.events.mirror_ended(runner, first.job.id, first.lease.attempt, [line(1)]) == 1
    with pytest.raises(LostAttempt):
        await harness.store.events.mirror_ended(runner, "ftjob-" + "0" * 24, 1, [line(1)])


async def test_the_events_of_a_cancelled_jobs_dead_runner_are_not_lost(harness: StoreHarness) -> None:
    dead, heir = await harness.runner(pid=1), await harness.runner(pid=2)
    claimed = await harness.running(runner=dead)
    await harness.store.control.cancel(claimed.job.id)
    (record,) = [runner for runner in await harness.store.runners.list() if runner.id == dead]
    (job,) = await harness.store.runners.replace_dead(heir, record)
    assert job.status.terminal
    assert await harness.store.events.mirror_ended(heir, job.id, job.attempt, [line(1)]) == 1


async def test_of_two_attempts_at_an_update_the_later_ones_metrics_stay(harness: StoreHarness) -> None:
    runner = await harness.runner()
    first = await harness.running(runner=runner)
    store, job_id = harness.store, first.job.id
    await store.events.mirror(first.lease, [metrics(1, 1, 5.0), metrics(2, 2, 4.0)])
    await store.attempts.release(first.lease, Outcome.LOST)
    second = await store.claims.claim_queued(runner, DEVICES)
    assert second is not None
    await store.events.mirror(second.lease, [metrics(1, 2, 3.5), metrics(2, 3, 3.0)])
    await store.events.mirror_ended(runner, job_id, first.lease.attempt, [metrics(3, 3, 9.9), metrics(4, 4, 9.8)])
    found = await store.events.list_metrics(job_id)
    assert [(metric.update, metric.data["loss"]) for metric in found] == [(1, 5.0), (2, 3.5), (3, 3.0), (4, 9.8)]
    assert await store.events.list_metrics(job_id, after=1, limit=1) == found[1:2]
    kept = [event for event in await store.events.list(job_id) if event.kind == "metrics"]
    assert len(kept) == 6  # events are what happened: none is overwritten


async def test_characters_that_a_text_column_refuses_are_replaced(harness: StoreHarness) -> None:
    claimed = await harness.running()
    data = {"loss": math.nan, "text": "\x00\ud800"}
    odd = Event.model_construct(line=1, time=1.0, kind="message", level="warn", message="a\x00b\ud800", data=data)
    await harness.store.events.mirror(claimed.lease, [odd])
    (event,) = await harness.store.events.list(claimed.job.id, newest_first=True, limit=1)
    assert (event.message, event.data) == ("a\ufffdb?", {"loss": None, "text": "\x00\ud800"})


async def test_events_come_before_the_end_that_they_led_to(harness: StoreHarness) -> None:
    claimed = await harness.running()
    await harness.store.events.mirror(claimed.lease, [line(1)])
    job = await harness.store.attempts.report_succeeded(claimed.lease, RESULT)
    statuses = [event.data.get("status") for event in await harness.store.events.list(job.id)]
    assert statuses == ["validating", "queued", "running", None, "succeeded"]
    assert job.last_event == len(statuses)

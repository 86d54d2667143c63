from collections.abc import Awaitable, Callable

import pytest

from onyx.jobs.errors import BadValueError, LostAttempt, NotAllowedError
from onyx.jobs.ids import JobKind
from onyx.jobs.models import ConfigChange, DeviceNeed, JobProgress, Lease
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.jobs.store.lifecycle import MAX_RETRIES
from onyx.jobs.store.store import Store
from onyx.training.contract.attempt import Failure
from tests.jobs.store_harness import CPU, DEVICES, FAILURE, LEASE, RESULT, SPEC, StoreHarness, line

Write = Callable[[Store, Lease], Awaitable[object]]

WRITES: dict[str, Write] = {
    "heartbeat": lambda store, lease: store.attempts.heartbeat(lease),
    "progress": lambda store, lease: store.attempts.report_progress(lease, JobProgress(update=1)),
    "checkpoint": lambda store, lease: store.attempts.report_checkpoint(lease, 5),
    "prepared": lambda store, lease: store.attempts.report_prepared(lease, [DeviceNeed(kind=CPU)], {}),
    "succeeded": lambda store, lease: store.attempts.report_succeeded(lease, RESULT),
    "failed": lambda store, lease: store.attempts.report_failed(lease, FAILURE),
    "lost": lambda store, lease: store.attempts.release(lease, Outcome.LOST),
    "memory": lambda store, lease: store.attempts.release(lease, Outcome.MEMORY),
    "saved": lambda store, lease: store.attempts.release(lease, Outcome.SAVED),
    "paused": lambda store, lease: store.attempts.report_paused(lease),
    "cancelled": lambda store, lease: store.attempts.report_cancelled(lease),
    "mirror": lambda store, lease: store.events.mirror(lease, [line(1)]),
}


async def test_success(harness: StoreHarness) -> None:
    claimed = await harness.running()
    await harness.pass_time(7.0)
    job = await harness.store.attempts.report_succeeded(claimed.lease, RESULT)
    assert (job.status, job.result) == (JobStatus.SUCCEEDED, RESULT)
    assert job.running_seconds == pytest.approx(7.0, abs=3)
    assert await harness.store.jobs.get(job.id) == job
    assert await harness.store.claims.claim_queued(await harness.runner(), DEVICES) is None


async def test_a_failed_job_is_never_retried(harness: StoreHarness) -> None:
    runner, made = await harness.runner(), await harness.job()
    preparing = await harness.store.claims.claim_validating(runner)
    assert preparing is not None
    job = await harness.store.attempts.report_failed(preparing.lease, FAILURE)
    assert (job.id, job.status, job.error) == (made.id, JobStatus.FAILED, FAILURE)
    assert await harness.store.claims.claim_validating(runner) is None
    assert (await harness.store.events.list(job.id, newest_first=True))[0].level == "error"


async def test_a_zombie_writes_nothing(harness: StoreHarness) -> None:
    zombie, heir = await harness.runner("alpha"), await harness.runner("beta")
    claimed = await harness.running(runner=zombie)
    await harness.pass_time(LEASE + 1, heir)
    assert [job.id for job in await harness.store.runners.expire_leases(heir)] == [claimed.job.id]
    await assert_powerless(harness.store, claimed.lease)
    assert await harness.store.claims.claim_queued(heir, DEVICES) is not None
    await assert_powerless(harness.store, claimed.lease)


async def assert_powerless(store: Store, lease: Lease) -> None:
    before = await store.jobs.get(lease.job_id)
    for write in WRITES.values():
        with pytest.raises(LostAttempt, match="stop its ranks"):
            await write(store, lease)
    assert await store.jobs.get(lease.job_id) == before


async def test_a_lease_that_lapsed_but_was_not_taken_is_renewed(harness: StoreHarness) -> None:
    claimed = await harness.running()
    await harness.pass_time(LEASE * 10)
    beat = await harness.store.attempts.heartbeat(claimed.lease)
    assert beat.lease_until > await harness.store.now()


async def test_the_heartbeat_returns_what_the_owner_wants(harness: StoreHarness) -> None:
    claimed = await harness.running()
    job_id = claimed.job.id
    quiet = await harness.store.attempts.heartbeat(claimed.lease)
    assert (quiet.request, quiet.config) == (None, None)
    await harness.store.control.change_config(job_id, ConfigChange(accumulation_steps=4))
    await harness.store.control.change_config(job_id, ConfigChange(gradient_clipping=None))
    await harness.store.control.pause(job_id)
    beat = await harness.store.attempts.heartbeat(claimed.lease)
    assert beat.request is StopRequest.PAUSE
    assert beat.config is not None
    assert (beat.config.seq, beat.config.change.given()) == (2, {"accumulation_steps": 4, "gradient_clipping": None})
    await harness.store.control.cancel(job_id)
    assert (await harness.store.attempts.heartbeat(claimed.lease)).request is StopRequest.CANCEL


async def test_warnings_of_the_plan_are_events(harness: StoreHarness) -> None:
    runner = await harness.runner()
    await harness.job()
    claimed = await harness.store.claims.claim_validating(runner)
    assert claimed is not None
    for _ in range(2):  # the runner repeats the call when the answer was lost
        await harness.store.attempts.report_prepared(
            claimed.lease, [DeviceNeed(kind=CPU)], {}, warnings=["bf16 does not work here"]
        )
    events = await harness.store.events.list(claimed.job.id)
    assert [event.message for event in events if event.level == "warn"] == ["bf16 does not work here"]


async def test_retries_end_unless_there_is_a_new_checkpoint(harness: StoreHarness) -> None:
    runner = await harness.runner()
    claimed = await harness.running(runner=runner)
    await harness.store.attempts.report_checkpoint(claimed.lease, 5)
    for retry in range(MAX_RETRIES):
        job = await harness.store.attempts.release(claimed.lease, Outcome.LOST)
        assert (job.status, job.lost_attempts) == (JobStatus.QUEUED, retry + 1)
        again = await harness.store.claims.claim_queued(runner, DEVICES)
        assert again is not None
        claimed = again
        await harness.store.attempts.report_checkpoint(claimed.lease, 5)  # the old one, saved again: no progress
    job = await harness.store.attempts.release(claimed.lease, Outcome.MEMORY)
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert (job.error.code, job.memory_losses) == ("out_of_memory", 1)


async def test_a_new_checkpoint_resets_the_counter(harness: StoreHarness) -> None:
    runner = await harness.runner()
    claimed = await harness.running(runner=runner)
    for update in range(MAX_RETRIES + 3):
        await harness.store.attempts.report_checkpoint(claimed.lease, update)
        job = await harness.store.attempts.release(claimed.lease, Outcome.LOST)
        assert (job.status, job.lost_attempts, job.checkpoint_update) == (JobStatus.QUEUED, 1, update)
        again = await harness.store.claims.claim_queued(runner, DEVICES)
        assert again is not None
        claimed = again


async def test_an_attempt_that_saved_never_counts_as_lost(harness: StoreHarness) -> None:
    runner = await harness.runner()
    claimed = await harness.running(runner=runner)
    for _ in range(MAX_RETRIES + 2):
        job = await harness.store.attempts.release(claimed.lease, Outcome.SAVED)
        assert (job.status, job.lost_attempts) == (JobStatus.QUEUED, 0)
        again = await harness.store.claims.claim_queued(runner, DEVICES)
        assert again is not None
        claimed = again


async def test_lost_while_preparing_starts_preparing_again(harness: StoreHarness) -> None:
    runner = await harness.runner()
    await harness.job()
    for retry in range(MAX_RETRIES + 1):
        claimed = await harness.store.claims.claim_validating(runner)
        assert claimed is not None
        assert claimed.lease.attempt == retry + 1
        job = await harness.store.attempts.release(claimed.lease, Outcome.LOST)
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "lost_attempts"


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.MEMORY, Outcome.SAVED])
async def test_a_pause_or_cancel_happens_however_the_attempt_ends(harness: StoreHarness, outcome: Outcome) -> None:
    claimed = await harness.running()
    await harness.store.control.pause(claimed.job.id)
    job = await harness.store.attempts.release(claimed.lease, outcome)
    assert (job.status, job.request) == (JobStatus.PAUSED, None)
    claimed = await harness.running("bob")
    await harness.store.control.cancel(claimed.job.id)
    assert (await harness.store.attempts.release(claimed.lease, outcome)).status is JobStatus.CANCELLED


async def test_a_job_that_finishes_before_its_cancellation_has_succeeded(harness: StoreHarness) -> None:
    claimed = await harness.running()
    await harness.store.control.cancel(claimed.job.id)
    job = await harness.store.attempts.report_succeeded(claimed.lease, RESULT)
    assert (job.status, job.request) == (JobStatus.SUCCEEDED, None)


@pytest.mark.parametrize("name", ["succeeded", "failed", "lost", "memory", "saved", "paused", "cancelled"])
async def test_an_end_that_is_reported_twice_counts_once(harness: StoreHarness, name: str) -> None:
    claimed = await harness.running()
    if name == "paused":
        await harness.store.control.pause(claimed.job.id)
    first = await WRITES[name](harness.store, claimed.lease)
    assert await WRITES[name](harness.store, claimed.lease) == first
    assert (await harness.store.jobs.get(claimed.job.id)) == first
    with pytest.raises(LostAttempt):
        await WRITES["cancelled" if name != "cancelled" else "failed"](harness.store, claimed.lease)


async def test_progress_and_the_prepared_document_are_kept(harness: StoreHarness) -> None:
    claimed = await harness.running()
    progress = JobProgress(update=3, total_updates=10, epoch=0.3, samples=6, trained_tokens=80, loss=float("1.5"))
    await harness.store.attempts.report_progress(claimed.lease, progress)
    job = await harness.store.jobs.get(claimed.job.id)
    assert job is not None
    assert job.progress == progress
    assert job.progress_at == pytest.approx(await harness.store.now(), abs=5)
    assert job.prepared == {"plan": {"window": 2}}
    assert job.needs == (DeviceNeed(kind=CPU),)


async def test_bad_writes_are_refused(harness: StoreHarness) -> None:
    claimed = await harness.running()
    with pytest.raises(BadValueError, match="at least one device"):
        await harness.store.attempts.report_prepared(claimed.lease, [], {})
    with pytest.raises(NotAllowedError, match="prepared before"):
        await harness.store.attempts.report_prepared(claimed.lease, [DeviceNeed(kind=CPU)], {})
    with pytest.raises(BadValueError, match="release a job as"):
        await harness.store.attempts.release(claimed.lease, Outcome.SUCCEEDED)
    with pytest.raises(BadValueError, match="must be 0 or more, not -1"):
        await harness.store.attempts.report_checkpoint(claimed.lease, -1)
    with pytest.raises(LostAttempt):
        await harness.store.attempts.heartbeat(Lease(job_id="ftjob-" + "0" * 24, attempt=1))
    await harness.store.attempts.heartbeat(claimed.lease)


async def test_a_job_in_preparation_cannot_succeed(harness: StoreHarness) -> None:
    await harness.job()
    claimed = await harness.store.claims.claim_validating(await harness.runner())
    assert claimed is not None
    with pytest.raises(NotAllowedError, match="validating and cannot become succeeded"):
        await harness.store.attempts.report_succeeded(claimed.lease, RESULT)
    await harness.store.attempts.heartbeat(claimed.lease)  # the refused write left nothing behind


async def test_a_job_without_auto_start_waits_until_it_is_resumed(harness: StoreHarness) -> None:
    spec = SPEC.model_copy(update={"auto_start": False})
    job = await harness.store.jobs.create(spec, "ann", JobKind.FINE_TUNING)
    runner = await harness.runner()
    claimed = await harness.store.claims.claim_validating(runner)
    assert claimed is not None
    document = {"truncated": 3, "bad_lines": 2}
    waiting = await harness.store.attempts.report_prepared(claimed.lease, [DeviceNeed(kind=CPU)], document)
    assert waiting.status is JobStatus.PAUSED
    assert await harness.store.claims.claim_queued(runner, DEVICES) is None
    assert (await harness.store.control.resume(job.id)).status is JobStatus.QUEUED
    assert await harness.store.claims.claim_queued(runner, DEVICES) is not None
    warnings = [event.data for event in await harness.store.events.list(job.id) if event.level == "warn"]
    assert warnings == [{"truncated": 3}, {"bad_lines": 2}]


async def test_a_failure_adds_an_event_for_each_bad_line(harness: StoreHarness) -> None:
    job = await harness.store.jobs.create(SPEC, "ann", JobKind.FINE_TUNING)
    claimed = await harness.store.claims.claim_validating(await harness.runner())
    assert claimed is not None
    finding = {"line": 3, "code": "invalid_json", "message": "not JSON", "part": "training"}
    failure = Failure(code="invalid_training_file", message="1 of 9 lines is bad", findings=[finding])
    await harness.store.attempts.report_failed(claimed.lease, failure)
    messages = (await harness.store.events.list(job.id))[-2:]
    assert [event.message for event in messages] == ["line 3 of the training data: not JSON", "1 of 9 lines is bad"]
    assert messages[0].data == {"line": 3, "code": "invalid_json", "part": "training"}

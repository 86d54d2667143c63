import pytest
from pydantic import JsonValue

from onyx.jobs.errors import (
    BadValueError,
    IdempotencyConflictError,
    JobNotFoundError,
    LostAttempt,
    NotAllowedError,
    QuotaExceededError,
)
from onyx.jobs.ids import JobKind, is_id
from onyx.jobs.models import ConfigChange, DeviceNeed
from onyx.jobs.status import JobStatus, Outcome, StopRequest
from onyx.jobs.store.store import Store
from onyx.training.contract.spec import DataSpec, JobSpec
from tests.jobs.store_harness import CPU, DEVICES, RESULT, SPEC, StoreHarness


async def test_a_new_job_is_validating_and_says_so(store: Store) -> None:
    job = await store.jobs.create(SPEC, "ann", JobKind.LARGE_BATCH)
    assert job.status is JobStatus.VALIDATING
    assert job.id.startswith(f"large_batch_{int(job.created_at)}_")
    assert await store.jobs.get(job.id) == job
    (event,) = await store.events.list(job.id)
    assert (event.seq, event.kind, event.data) == (1, "status", {"status": "validating"})


async def test_samples_stay_out_of_lists_and_come_back_whole(store: Store) -> None:
    rows: list[dict[str, JsonValue]] = [{"prompt": "nul \x00 and é", "completion": "😀"}]
    spec = JobSpec(model="onyx/tiny", data=DataSpec(rows=rows, evaluation_rows=rows), labels={"b": 1, "a": [None]})
    job = await store.jobs.create(spec, "ann", JobKind.FINE_TUNING)
    assert job.spec.data.rows == []
    assert job.spec.labels == spec.labels
    assert (await store.jobs.list()).jobs[0].spec == job.spec
    assert await store.jobs.spec(job.id) == spec


async def test_one_key_makes_one_job(store: Store) -> None:
    first = await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, idempotency_key="k")
    assert await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, idempotency_key="k") == first
    assert (await store.jobs.create(SPEC, "bob", JobKind.ACCUMULATION, idempotency_key="k")).id != first.id
    other = SPEC.model_copy(update={"window": 64})
    for spec, kind in ((other, JobKind.ACCUMULATION), (SPEC, JobKind.LARGE_BATCH)):
        with pytest.raises(IdempotencyConflictError, match="use a new key"):
            await store.jobs.create(spec, "ann", kind, idempotency_key="k")
    assert len((await store.jobs.list()).jobs) == 2


async def test_the_order_of_labels_is_not_another_body(store: Store) -> None:
    bodies = [SPEC.model_copy(update={"labels": labels}) for labels in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    ids = {(await store.jobs.create(body, "ann", JobKind.ACCUMULATION, idempotency_key="k")).id for body in bodies}
    assert len(ids) == 1


async def test_unfinished_jobs_have_a_quota(store: Store) -> None:
    job = await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, max_open=1, idempotency_key="k")
    with pytest.raises(QuotaExceededError, match="1 jobs are unfinished"):
        await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, max_open=1)
    same = await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, max_open=1, idempotency_key="k")
    assert same.id == job.id
    await store.jobs.create(SPEC, "bob", JobKind.ACCUMULATION, max_open=1)
    await store.control.cancel(job.id)
    await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, max_open=1)


async def test_names_must_be_printable(store: Store) -> None:
    for name in ("", "x" * 256, "nul\x00", "line\nbreak", "\ud800"):
        with pytest.raises(BadValueError, match="printable"):
            await store.jobs.create(SPEC, name, JobKind.ACCUMULATION)
        with pytest.raises(BadValueError, match="printable"):
            await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION, idempotency_key=name)


async def test_another_owners_job_does_not_exist(store: Store) -> None:
    job = await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION)
    assert await store.jobs.get(job.id, "ann") == job
    assert await store.jobs.get(job.id, "bob") is None
    for ask in (store.jobs.spec, store.jobs.delete, store.control.cancel, store.control.pause, store.control.resume):
        with pytest.raises(JobNotFoundError):
            await ask(job.id, "bob")
    with pytest.raises(BadValueError, match="to list after"):
        await store.jobs.list(owner="bob", after=job.id)


async def test_an_id_that_onyx_cannot_have_made_is_nobodys(store: Store) -> None:
    for job_id in ("", "../../etc", "accumulation_1_\x00aaaaaaaaa", "x" * 10_000):
        assert not is_id(job_id)
        assert await store.jobs.get(job_id) is None
        assert await store.events.list(job_id) == ()
        assert await store.events.list_metrics(job_id) == ()
        assert await store.jobs.attempts(job_id) == ()
        assert await store.configs.get(job_id) is None
        with pytest.raises(JobNotFoundError):
            await store.control.cancel(job_id)


async def test_pages_have_every_job_once_newest_first(store: Store) -> None:
    made = [(await store.jobs.create(SPEC, f"owner-{n % 2}", JobKind.ACCUMULATION)).id for n in range(7)]
    seen: list[str] = []
    after = None
    while True:
        page = await store.jobs.list(limit=3, after=after)
        seen += [job.id for job in page.jobs]
        if not page.more:
            break
        after = seen[-1]
    assert seen == made[::-1]
    mine = await store.jobs.list(owner="owner-1")
    assert [job.id for job in mine.jobs] == made[1::2][::-1]


async def test_lists_by_status_and_kind(store: Store) -> None:
    jobs = [await store.jobs.create(SPEC, "ann", kind) for kind in JobKind]
    await store.control.cancel(jobs[0].id)
    await store.control.pause(jobs[1].id)

    async def ids(*statuses: JobStatus, kind: JobKind | None = None) -> list[str]:
        return [job.id for job in (await store.jobs.list(owner="ann", statuses=statuses, kind=kind)).jobs]

    assert await ids(JobStatus.CANCELLED) == [jobs[0].id]
    assert await ids(JobStatus.CANCELLED, JobStatus.PAUSED) == [jobs[1].id, jobs[0].id]
    assert await ids(kind=JobKind.FINE_TUNING) == [jobs[2].id]
    for limit in (0, 1001):
        with pytest.raises(BadValueError, match="limit"):
            await store.jobs.list(limit=limit)


async def test_only_a_finished_job_can_be_deleted_and_then_nothing_is_left(harness: StoreHarness) -> None:
    store = harness.store
    claimed = await harness.running()
    with pytest.raises(NotAllowedError, match="cancel it before"):
        await store.jobs.delete(claimed.job.id)
    await store.attempts.report_cancelled(claimed.lease)
    await store.jobs.delete(claimed.job.id, "ann")
    assert await store.jobs.get(claimed.job.id) is None
    assert await store.events.list(claimed.job.id) == ()
    assert await store.jobs.attempts(claimed.job.id) == ()
    with pytest.raises(JobNotFoundError):
        await store.jobs.delete(claimed.job.id)


async def test_a_request_that_comes_again_finds_its_job_for_a_while(harness: StoreHarness) -> None:
    first = await harness.store.jobs.create(SPEC, "ann", JobKind.FINE_TUNING)
    assert (await harness.store.jobs.create(SPEC, "ann", JobKind.FINE_TUNING, again_within=60)).id == first.id
    other = SPEC.model_copy(update={"window": 7})
    assert (await harness.store.jobs.create(other, "ann", JobKind.FINE_TUNING, again_within=60)).id != first.id
    assert (await harness.store.jobs.create(SPEC, "bob", JobKind.FINE_TUNING, again_within=60)).id != first.id
    harness.clock.ahead += 61
    assert (await harness.store.jobs.create(SPEC, "ann", JobKind.FINE_TUNING, again_within=60)).id != first.id


async def test_jobs_are_found_by_their_metadata(harness: StoreHarness) -> None:
    marked = SPEC.model_copy(update={"labels": {"metadata": {"a": "1", "b": "\x00é" * 200}}})
    job = await harness.store.jobs.create(marked, "ann", JobKind.FINE_TUNING)
    plain = await harness.store.jobs.create(SPEC, "ann", JobKind.FINE_TUNING)

    async def found(metadata: dict[str, str]) -> list[str]:
        return [each.id for each in (await harness.store.jobs.list(metadata=metadata)).jobs]

    assert await found({"a": "1"}) == await found({"a": "1", "b": "\x00é" * 200}) == [job.id]
    assert await found({"a": "2"}) == await found({"a": "1", "b": ""}) == []
    assert await found({}) == [plain.id]
    await harness.store.control.cancel(job.id)
    await harness.store.jobs.delete(job.id)
    assert await found({"a": "1"}) == []


async def test_a_job_that_does_not_run_is_cancelled_at_once(harness: StoreHarness) -> None:
    for job in (await harness.job(), await harness.job("bob")):
        cancelled = await harness.store.control.cancel(job.id, job.owner)
        assert cancelled.status is JobStatus.CANCELLED
        assert cancelled.finished_at is not None
        assert await harness.store.control.cancel(job.id) == cancelled  # asked again, as after a lost answer
    queued = await harness.queued()
    assert (await harness.store.control.cancel(queued.id)).status is JobStatus.CANCELLED
    assert await harness.store.claims.claim_queued(await harness.runner(), DEVICES) is None


async def test_cancelling_during_preparation_fences_the_helper(harness: StoreHarness) -> None:
    await harness.job()
    claimed = await harness.store.claims.claim_validating(await harness.runner())
    assert claimed is not None
    await harness.store.control.cancel(claimed.job.id)
    with pytest.raises(LostAttempt):
        await harness.store.attempts.report_prepared(claimed.lease, [DeviceNeed(kind=CPU)], {})
    with pytest.raises(LostAttempt):
        await harness.store.attempts.report_cancelled(claimed.lease)
    assert (await harness.store.jobs.attempts(claimed.job.id))[0].outcome is Outcome.CANCELLED


async def test_a_running_job_is_asked(harness: StoreHarness) -> None:
    claimed = await harness.running()
    asked = await harness.store.control.cancel(claimed.job.id)
    assert (asked.status, asked.request) == (JobStatus.RUNNING, StopRequest.CANCEL)
    assert await harness.store.control.cancel(claimed.job.id) == asked
    for ask in (harness.store.control.pause, harness.store.control.resume):
        with pytest.raises(NotAllowedError, match="being cancelled"):
            await ask(claimed.job.id)
    assert (await harness.store.attempts.report_cancelled(claimed.lease)).status is JobStatus.CANCELLED


async def test_pause_and_resume_wherever_the_job_is(harness: StoreHarness) -> None:
    store = harness.store
    fresh = await harness.job()
    assert (await store.control.pause(fresh.id)).status is JobStatus.PAUSED
    assert await store.claims.claim_validating(await harness.runner()) is None
    assert (await store.control.resume(fresh.id)).status is JobStatus.VALIDATING
    await store.control.cancel(fresh.id)

    queued = await harness.queued()
    paused = await store.control.pause(queued.id)
    assert paused.status is JobStatus.PAUSED
    assert await store.control.pause(queued.id) == paused
    assert await store.claims.claim_queued(await harness.runner(), DEVICES) is None
    resumed = await store.control.resume(queued.id)
    assert resumed.status is JobStatus.QUEUED
    assert await store.control.resume(queued.id) == resumed
    await store.control.pause(queued.id)
    assert (await store.control.cancel(queued.id)).status is JobStatus.CANCELLED


async def test_pausing_a_running_job(harness: StoreHarness) -> None:
    store, runner = harness.store, await harness.runner()
    claimed = await harness.running(runner=runner)
    await store.control.pause(claimed.job.id)
    assert (await store.attempts.report_paused(claimed.lease)).status is JobStatus.PAUSED
    assert await store.claims.claim_queued(runner, DEVICES) is None
    await store.control.resume(claimed.job.id)
    again = await store.claims.claim_queued(runner, DEVICES)
    assert again is not None
    assert again.lease.attempt == claimed.lease.attempt + 1


async def test_a_pause_that_was_taken_back_while_the_ranks_saved(harness: StoreHarness) -> None:
    claimed = await harness.running()
    await harness.store.control.pause(claimed.job.id)
    assert (await harness.store.control.resume(claimed.job.id)).request is None
    assert (await harness.store.attempts.report_paused(claimed.lease)).status is JobStatus.QUEUED


async def test_a_finished_job_takes_no_requests(harness: StoreHarness) -> None:
    claimed = await harness.running()
    job = await harness.store.attempts.report_succeeded(claimed.lease, RESULT)
    for ask in (harness.store.control.cancel, harness.store.control.pause, harness.store.control.resume):
        with pytest.raises(NotAllowedError, match="succeeded"):
            await ask(job.id)
    with pytest.raises(NotAllowedError, match="no longer change"):
        await harness.store.control.change_config(job.id, ConfigChange(accumulation_steps=2))
    assert await harness.store.jobs.get(job.id) == job


async def test_config_changes_add_up_and_reach_later_attempts(harness: StoreHarness) -> None:
    store, runner = harness.store, await harness.runner()
    claimed = await harness.running(runner=runner)
    await store.control.change_config(claimed.job.id, ConfigChange(gradient_clipping=0.5), "ann")
    await store.control.change_config(claimed.job.id, ConfigChange(accumulation_steps=8, gradient_clipping=2.0))
    await store.attempts.release(claimed.lease, Outcome.LOST)
    again = await store.claims.claim_queued(runner, DEVICES)
    assert again is not None
    assert again.job.config is not None
    assert again.job.config.seq == 2
    assert again.job.config.change.given() == {"accumulation_steps": 8, "gradient_clipping": 2.0}


@pytest.mark.parametrize(
    "fields", [{}, {"accumulation_steps": None}, {"accumulation_steps": 0}, {"gradient_clipping": 0.0}, {"window": 3}]
)
def test_other_changes_are_refused(fields: dict[str, float | None]) -> None:
    with pytest.raises(ValueError, match=r"accumulation_steps|gradient_clipping|window"):
        ConfigChange.model_validate(fields)

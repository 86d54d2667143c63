import pytest
from pydantic import JsonValue

from onyx.jobs.errors import (
    BadValueError,
    IdempotencyConflictError,
    JobNotFoundError,
    NotAllowedError,
    QuotaExceededError,
)
from onyx.jobs.ids import JobKind, is_id
from onyx.jobs.status import JobStatus
from onyx.jobs.store.store import Store
from onyx.training.contract.spec import DataSpec, JobSpec
from tests.jobs.store_harness import SPEC, StoreHarness


async def test_a_new_job_is_validating_and_says_so(store: Store) -> None:
    job = await store.jobs.create(SPEC, "ann", JobKind.LARGE_BATCH)
    assert job.status is JobStatus.VALIDATING
    assert job.id.startswith(f"large_batch_{int(job.created_at)}_")
    assert await store.jobs.get(job.id) == job
    (event,) = await store.events.list(job.id)
    assert (event.seq, event.kind, event.data) == (1, "status", {"status": "validating"})


async def test_samples_stay_out_of_lists_and_are_in_the_spec(store: Store) -> None:
    rows: list[dict[str, JsonValue]] = [{"prompt": "nul \x00 and é", "completion": "😀"}]
    spec = JobSpec(model="onyx/tiny", data=DataSpec(rows=rows, evaluation_rows=rows), labels={"b": 1, "a": [None]})
    job = await store.jobs.create(spec, "ann", JobKind.FINE_TUNING)
    assert job.spec.data.rows == []
    assert job.spec.labels == spec.labels
    assert (await store.jobs.list()).jobs[0].spec == job.spec
    assert await store.jobs.spec(job.id) == spec


async def test_one_key_creates_one_job(store: Store) -> None:
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
    for call in (store.jobs.spec, store.jobs.delete, store.control.cancel, store.control.pause, store.control.resume):
        with pytest.raises(JobNotFoundError):
            await call(job.id, "bob")
    with pytest.raises(BadValueError, match="to list after"):
        await store.jobs.list(owner="bob", after=job.id)


async def test_text_that_is_no_id_finds_no_job(store: Store) -> None:
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


async def test_a_repeated_request_finds_its_job_for_a_while(harness: StoreHarness) -> None:
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

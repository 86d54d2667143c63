"""Jobs: create, get, list, count and delete them."""

import hashlib
from collections.abc import Collection, Mapping

from sqlalchemy import ColumnElement, Select, delete, func, insert, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from onyx.jobs.errors import (
    BadValueError,
    IdempotencyConflictError,
    JobNotFoundError,
    NotAllowedError,
    QuotaExceededError,
    StoreError,
)
from onyx.jobs.ids import JobKind, is_id, make_job_id
from onyx.jobs.models import Job, Page
from onyx.jobs.records import AttemptRecord
from onyx.jobs.status import OPEN, JobStatus
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.lifecycle import add_event, lock_job
from onyx.jobs.store.rows import join_spec, split_spec, to_attempt, to_job
from onyx.jobs.store.tables import AttemptRow, IdempotencyRow, JobRow, MetadataRow, OwnerRow, SamplesRow
from onyx.training.contract.spec import JobSpec

MAX_PAGE = 1000


class Jobs(Concern):
    """Jobs as their owners see them; `owner` None is the operator."""

    async def create(
        self,
        spec: JobSpec,
        owner: str,
        kind: JobKind,
        *,
        idempotency_key: str | None = None,
        max_open: int | None = None,
        again_within: float | None = None,
        refusal: StoreError | None = None,
    ) -> Job:
        """Create a job with status `validating`, or return the one that an earlier request with the same key created.

        `again_within` is for requests that a client marks as a retry: the job that the same body created within so many
        seconds is returned. `refusal` is raised only when a new job would be created, not when an earlier job is
        returned.
        """
        check_name("owner", owner)
        if idempotency_key is not None:
            check_name("idempotency key", idempotency_key)
        body_hash = hashlib.sha256(f"{kind} {json_text.canonical(spec)}".encode()).hexdigest()
        async with self._database.writing() as tx:
            await lock_owner(tx, owner)
            if idempotency_key is not None and (earlier := await _job_of_key(tx, owner, idempotency_key, body_hash)):
                return to_job(earlier)
            if again_within is not None and (recent := await _recent_job(tx, owner, body_hash, again_within)):
                return to_job(recent)
            if refusal is not None:
                raise refusal
            await _check_quota(tx, owner, max_open)
            job = await _insert(tx, spec, owner, kind, body_hash)
            if idempotency_key is not None:
                key = {"owner": owner, "key": idempotency_key, "body_hash": body_hash, "job_id": job.id}
                await tx.session.execute(insert(IdempotencyRow).values(**key))
            return to_job(job)

    async def get(self, job_id: str, owner: str | None = None) -> Job | None:
        """The job; None if there is none or it is another owner's."""
        if not is_id(job_id):
            return None
        async with self._database.reading() as session:
            row = await session.get(JobRow, job_id)
            return to_job(row) if row is not None and owner in (None, row.owner) else None

    async def status(self, job_id: str) -> JobStatus:
        """The status alone, for callers that poll."""
        async with self._database.reading() as session:
            found = await session.scalar(select(JobRow.status).where(JobRow.id == job_id)) if is_id(job_id) else None
        if found is None:
            raise JobNotFoundError(job_id)
        return JobStatus(found)

    async def spec(self, job_id: str, owner: str | None = None) -> JobSpec:
        """The job's spec with every sample."""
        async with self._database.reading() as session:
            row = await session.get(JobRow, job_id) if is_id(job_id) else None
            if row is None or owner not in (None, row.owner):
                raise JobNotFoundError(job_id)
            samples = await session.get(SamplesRow, job_id)
            return join_spec(row.spec, samples.samples if samples else None)

    async def list(
        self,
        *,
        owner: str | None = None,
        statuses: Collection[JobStatus] = (),
        kind: JobKind | None = None,
        metadata: Mapping[str, str] | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> Page:
        """Jobs, newest first; `after` is the id of the last job of the page before.

        `metadata` are pairs that a job must have; an empty mapping finds the jobs without metadata.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise BadValueError(f"limit must be between 1 and {MAX_PAGE}, not {limit}")
        cursor = None
        if after is not None:
            cursor = await self.get(after, owner)
            if cursor is None:
                raise BadValueError(f"there is no job {after[:80]!r} to list after")
        query = page_query(owner=owner, statuses=statuses, kind=kind, after=cursor, limit=limit, metadata=metadata)
        async with self._database.reading() as session:
            rows = (await session.scalars(query)).all()
        return Page(jobs=tuple(to_job(row) for row in rows[:limit]), more=len(rows) > limit)

    async def count(self, owner: str | None = None) -> int:
        """How many jobs there are, finished ones included."""
        query = select(func.count()).select_from(JobRow)
        if owner is not None:
            query = query.where(JobRow.owner == owner)
        async with self._database.reading() as session:
            return int((await session.execute(query)).scalar_one())

    async def statuses(self, owner: str) -> dict[str, JobStatus]:
        """The status of each of an owner's jobs, by id. The index answers, however long their rows are."""
        async with self._database.reading() as session:
            rows = await session.execute(select(JobRow.id, JobRow.status).where(JobRow.owner == owner))
            return {job_id: JobStatus(status) for job_id, status in rows}

    async def attempts(self, job_id: str) -> tuple[AttemptRecord, ...]:
        """Every attempt of a job, first to last."""
        async with self._database.reading() as session:
            query = select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.number)
            return tuple(to_attempt(row) for row in await session.scalars(query)) if is_id(job_id) else ()

    async def delete(self, job_id: str, owner: str | None = None) -> None:
        """Delete a finished job with its events. The caller removes its files."""
        async with self._database.writing() as tx:
            job = await lock_job(tx, job_id, owner)
            if not JobStatus(job.status).terminal:
                raise NotAllowedError(f"{job_id} is {job.status}: cancel it before deleting it")
            await tx.session.execute(delete(JobRow).where(JobRow.id == job_id))


def page_query(
    *,
    owner: str | None,
    statuses: Collection[JobStatus],
    kind: JobKind | None,
    after: Job | None,
    limit: int,
    metadata: Mapping[str, str] | None = None,
) -> Select[JobRow]:
    """A page and one row more, which shows whether there is another page."""
    query = select(JobRow).order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(limit + 1)
    if owner is not None:
        query = query.where(JobRow.owner == owner)
    if len(statuses) == 1:  # with `=` instead of `in`, the index by status gives the order too
        query = query.where(JobRow.status == next(iter(statuses)))
    elif statuses:
        query = query.where(JobRow.status.in_(sorted(statuses)))
    if kind is not None:
        query = query.where(JobRow.kind == kind)
    if metadata is not None:
        query = query.where(*_has(metadata))
    if after is not None:
        query = query.where(tuple_(JobRow.created_at, JobRow.id) < tuple_(after.created_at, after.id))
    return query


def _has(metadata: Mapping[str, str]) -> list[ColumnElement[bool]]:
    if not metadata:
        return [~select(MetadataRow.pair).where(MetadataRow.job_id == JobRow.id).exists()]
    pairs = [pair_hash(key, value) for key, value in metadata.items()]
    return [JobRow.id.in_(select(MetadataRow.job_id).where(MetadataRow.pair == pair)) for pair in pairs]


def pair_hash(key: str, value: str) -> str:
    """A pair of metadata as the store searches for it: a hash, so that any text fits an index."""
    return hashlib.sha256(json_text.dump([key, value]).encode()).hexdigest()


def check_name(what: str, text: str) -> None:
    """Refuse a name that is not short and printable: names go into columns, headers and log lines."""
    if not 1 <= len(text) <= 255 or not text.isprintable():
        raise BadValueError(f"{what} must be 1 to 255 printable characters")


async def lock_owner(tx: Transaction, owner: str) -> None:
    """Let one transaction at a time create something for this owner: a key makes one job, quotas hold."""
    dialect = postgresql if tx.session.get_bind().dialect.name == "postgresql" else sqlite
    await tx.session.execute(dialect.insert(OwnerRow).values(name=owner).on_conflict_do_nothing())
    await tx.session.execute(select(OwnerRow).where(OwnerRow.name == owner).with_for_update())


async def _job_of_key(tx: Transaction, owner: str, key: str, body_hash: str) -> JobRow | None:
    row = await tx.session.get(IdempotencyRow, (owner, key))
    if row is None:
        return None
    if row.body_hash != body_hash:
        raise IdempotencyConflictError(
            f"the idempotency key {key!r} was used for another request: use a new key, or send the same request"
        )
    return await tx.session.get_one(JobRow, row.job_id)


async def _recent_job(tx: Transaction, owner: str, body_hash: str, seconds: float) -> JobRow | None:
    """The newest job that the same body created within the last `seconds`."""
    query = select(JobRow).where(JobRow.owner == owner, JobRow.body_hash == body_hash)
    query = query.where(JobRow.created_at > tx.now - seconds).order_by(JobRow.created_at.desc())
    return (await tx.session.scalars(query.limit(1))).one_or_none()


async def _check_quota(tx: Transaction, owner: str, max_open: int | None) -> None:
    if max_open is None:
        return
    query = select(func.count()).where(JobRow.owner == owner, JobRow.status.in_(sorted(OPEN)))
    if (await tx.session.execute(query)).scalar_one() >= max_open:
        raise QuotaExceededError(f"{max_open} jobs are unfinished, which is the limit: wait for one or cancel one")


async def _insert(tx: Transaction, spec: JobSpec, owner: str, kind: JobKind, body_hash: str) -> JobRow:
    shown, samples = split_spec(spec)
    job = JobRow(
        id=make_job_id(kind, tx.now),
        owner=owner,
        kind=kind,
        status=JobStatus.VALIDATING,
        created_at=tx.now,
        spec=shown,
        body_hash=body_hash,
        last_event=0,
    )
    tx.session.add(job)
    await tx.session.flush()
    if samples is not None:
        tx.session.add(SamplesRow(job_id=job.id, samples=samples))
    for key, value in (spec.labels.get("metadata") or {}).items():
        tx.session.add(MetadataRow(job_id=job.id, pair=pair_hash(key, str(value))))
    add_event(tx, job, "The job was created", status=JobStatus.VALIDATING)
    await tx.session.flush()
    return job

"""With ten thousand finished jobs, the queries that run every second must not read them all."""

import re

from sqlalchemy import Select, insert, text
from sqlalchemy.ext.asyncio import AsyncSession

from onyx.jobs.status import JobStatus
from onyx.jobs.store.claims import busy_query, oldest_query, waiting_query
from onyx.jobs.store.events import events_query
from onyx.jobs.store.jobs import page_query
from onyx.jobs.store.rows import split_spec
from onyx.jobs.store.runners import held_query, lapsed_query
from onyx.jobs.store.tables import AttemptRow, EventRow, JobRow
from tests.jobs.store_harness import DEVICES, SPEC, StoreHarness

FINISHED = 10_000


async def fill(harness: StoreHarness) -> None:
    spec, _ = split_spec(SPEC)
    jobs = [
        {
            "id": f"accumulation_{number}_{number:010d}",
            "owner": f"owner-{number % 5}",
            "kind": "accumulation",
            "status": "succeeded",
            "created_at": float(number),
            "version": 1,
            "spec": spec,
        }
        for number in range(FINISHED)
    ]
    attempts = [
        {
            "job_id": job["id"],
            "number": 1,
            "runner_id": "runner-x",
            "host": "alpha",
            "phase": "running",
            "devices": "[]",
            "claimed_at": 0.0,
            "lease_until": 1.0,
            "ended_at": 1.0,
            "outcome": "succeeded",
        }
        for job in jobs
    ]
    fields = {"attempt": 1, "time": 0.0, "kind": "message", "level": "info", "message": "hello", "data": "{}"}
    events = [{"job_id": job["id"], "seq": 1, "line": 1, **fields} for job in jobs]
    async with harness.store.database.writing() as tx:
        for table, rows in ((JobRow, jobs), (AttemptRow, attempts), (EventRow, events)):
            await tx.session.execute(insert(table), rows)
        await tx.session.execute(text("ANALYZE"))


async def full_reads(session: AsyncSession, query: Select[*tuple[object, ...]]) -> list[str]:
    """The tables that the query reads completely, according to the database's plan."""
    dialect = session.get_bind().dialect
    sql = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    explain = "EXPLAIN QUERY PLAN " if dialect.name == "sqlite" else "EXPLAIN "
    rows = await (await session.connection()).exec_driver_sql(explain + sql)
    plan = "\n".join(str(row[-1]) for row in rows)
    if dialect.name == "sqlite":
        return re.findall(r"^SCAN (?!.*USING (?:COVERING )?INDEX).*$", plan, re.MULTILINE)
    return re.findall(r"Seq Scan on (?:job|event|attempt)\b.*", plan)


async def test_frequent_queries_do_not_read_finished_jobs(harness: StoreHarness) -> None:
    await fill(harness)
    await harness.queued()
    runner = await harness.runner()
    newest = (await harness.store.jobs.list(owner="owner-1", limit=5)).jobs[-1]
    queries: list[Select[*tuple[object, ...]]] = [
        waiting_query(JobStatus.QUEUED),
        waiting_query(JobStatus.VALIDATING),
        busy_query(JobStatus.QUEUED),
        busy_query(JobStatus.VALIDATING),
        oldest_query(JobStatus.QUEUED, "owner-1", '[{"kind":"cpu","name":null}]'),
        lapsed_query(100.0),
        held_query(runner),
        events_query(newest.id, after=0, limit=100, newest_first=False),
        events_query(newest.id, after=None, limit=100, newest_first=True),
        page_query(owner="owner-1", statuses=(), kind=None, after=None, limit=20),
        page_query(owner="owner-1", statuses=(), kind=None, after=newest, limit=20),
        page_query(owner="owner-1", statuses=[JobStatus.RUNNING], kind=None, after=None, limit=20),
        page_query(owner=None, statuses=(), kind=None, after=newest, limit=20),
    ]
    async with harness.store.database.reading() as session:
        for query in queries:
            assert await full_reads(session, query) == [], query
    claimed = await harness.store.claims.claim_queued(runner, DEVICES)
    assert claimed is not None

"""Events and metrics: mirrored from the attempts' files, each line once, numbered so that no reader misses one."""

from collections.abc import Sequence

from sqlalchemy import Select, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from onyx.jobs.errors import BadValueError, LostAttempt
from onyx.jobs.ids import is_id
from onyx.jobs.models import Lease
from onyx.jobs.records import Metric, StoredEvent
from onyx.jobs.store import json_text
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.lifecycle import find_attempt, find_job, live_attempt, lock_held
from onyx.jobs.store.rows import to_event
from onyx.jobs.store.tables import EventRow, JobRow, MetricRow
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Event

MAX_PAGE = 1000
UPDATE = "update"
"""The key of the update's number in the data of a metrics event."""


class EventLog(Concern):
    """The numbered events of each job. Numbers 1, 2, 3… are given under the job's lock, in the transaction that stores
    the event: after event n, a reader never meets a new event with a smaller number."""

    async def mirror(self, lease: Lease, lines: Sequence[Event]) -> int:
        """Store lines of the attempt's events file that are not stored yet; how many there were."""
        async with self._database.writing() as tx:
            job, _ = await lock_held(tx, lease)
            return await _append(tx, job, lease.attempt, lines)

    async def mirror_ended(self, runner_id: str, job_id: str, attempt: int, lines: Sequence[Event]) -> int:
        """Store the rest of an ended attempt's file. The runner that took over or ended the job calls this.

        The runner that lost the attempt may not, unless it holds the job again: it may be a zombie.
        """
        async with self._database.writing() as tx:
            job = await find_job(tx, job_id)
            ended = await find_attempt(tx, job_id, attempt)
            if job is None or ended is None:
                raise LostAttempt(job_id, attempt)
            live = await live_attempt(tx, job)
            holds = live is not None and live.runner_id == runner_id
            if ended.ended_at is None or (ended.runner_id == runner_id and not holds):
                raise LostAttempt(job_id, attempt)
            return await _append(tx, job, attempt, lines)

    async def list(
        self, job_id: str, *, after: int | None = None, limit: int = 100, newest_first: bool = False
    ) -> tuple[StoredEvent, ...]:
        """Events after number `after`: later ones, or earlier ones if `newest_first`."""
        query = events_query(job_id, after=after, limit=_check_limit(limit), newest_first=newest_first)
        if not is_id(job_id):
            return ()
        async with self._database.reading() as session:
            return tuple(to_event(row) for row in await session.scalars(query))

    async def snapshots(self, job_id: str) -> tuple[StoredEvent, ...]:
        """The latest snapshot event of each epoch, newest first."""
        query = (
            select(EventRow)
            .where(EventRow.job_id == job_id, EventRow.kind == event_kinds.SNAPSHOT)
            .order_by(EventRow.seq)
        )
        async with self._database.reading() as session:
            by_epoch = {(event := to_event(row)).data.get("epoch"): event for row in await session.scalars(query)}
        return tuple(sorted(by_epoch.values(), key=lambda event: event.seq, reverse=True))

    async def last_line(self, job_id: str, attempt: int) -> int:
        """The last stored line of an attempt's events file; 0 for none."""
        query = select(func.max(EventRow.line)).where(EventRow.job_id == job_id, EventRow.attempt == attempt)
        async with self._database.reading() as session:
            return (await session.execute(query)).scalar_one() or 0

    async def list_metrics(self, job_id: str, *, after: int = -1, limit: int = MAX_PAGE) -> tuple[Metric, ...]:
        """The metrics of the updates after update `after`, in order."""
        query = select(MetricRow).where(MetricRow.job_id == job_id, MetricRow.update > after)
        query = query.order_by(MetricRow.update).limit(_check_limit(limit))
        if not is_id(job_id):
            return ()
        async with self._database.reading() as session:
            return tuple(_to_metric(row) for row in await session.scalars(query))

    async def last_metrics(self, job_id: str, count: int) -> tuple[Metric, ...]:
        """The metrics of the newest `count` updates, in the order of updates."""
        query = select(MetricRow).where(MetricRow.job_id == job_id).order_by(MetricRow.update.desc())
        async with self._database.reading() as session:
            newest = await session.scalars(query.limit(_check_limit(count)))
            return tuple(_to_metric(row) for row in reversed(newest.all()))


def _to_metric(row: MetricRow) -> Metric:
    return Metric(update=row.update, attempt=row.attempt, time=row.time, data=json_text.load(row.data))


def events_query(job_id: str, *, after: int | None, limit: int, newest_first: bool) -> Select[EventRow]:
    query = select(EventRow).where(EventRow.job_id == job_id).limit(limit)
    if newest_first:
        query = query.order_by(EventRow.seq.desc())
        return query if after is None else query.where(EventRow.seq < after)
    return query.order_by(EventRow.seq).where(EventRow.seq > (after or 0))


def _check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise BadValueError(f"limit must be between 1 and {MAX_PAGE}, not {limit}")
    return limit


async def _append(tx: Transaction, job: JobRow, attempt: int, lines: Sequence[Event]) -> int:
    by_line = {event.line: event for event in lines}
    if not by_line:
        return 0
    known = select(EventRow.line).where(
        EventRow.job_id == job.id,
        EventRow.attempt == attempt,
        EventRow.line.between(min(by_line), max(by_line)),
    )
    present = set(await tx.session.scalars(known))
    new = [by_line[line] for line in sorted(by_line) if line not in present]
    if new:
        rows = [_row(job, attempt, job.last_event + place, event) for place, event in enumerate(new, start=1)]
        await tx.session.execute(insert(EventRow), rows)
        job.last_event += len(new)
        await _keep_metrics(tx, job, attempt, new)
    return len(new)


def _row(job: JobRow, attempt: int, seq: int, event: Event) -> dict[str, str | int | float]:
    return {
        "job_id": job.id,
        "seq": seq,
        "attempt": attempt,
        "line": event.line,
        "time": event.time,
        "kind": event.kind,
        "level": event.level,
        "message": json_text.clean(event.message),
        "data": json_text.dump(event.data),
    }


async def _keep_metrics(tx: Transaction, job: JobRow, attempt: int, events: Sequence[Event]) -> None:
    """Keep one row per update: of two attempts that made it, the later one's, also if that was mirrored first."""
    rows = [
        {"job_id": job.id, "update": update, "attempt": attempt, "time": event.time, "data": json_text.dump(event.data)}
        for event in events
        if event.kind == event_kinds.METRICS and isinstance(update := event.data.get(UPDATE), int)
    ]
    if not rows:
        return
    dialect = postgresql if tx.session.get_bind().dialect.name == "postgresql" else sqlite
    new = dialect.insert(MetricRow)
    taken = {name: new.excluded[name] for name in ("attempt", "time", "data")}
    later = new.excluded.attempt >= MetricRow.attempt
    await tx.session.execute(
        new.on_conflict_do_update(index_elements=["job_id", "update"], set_=taken, where=later), rows
    )

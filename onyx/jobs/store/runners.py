"""Runners: which there are, whether they reach the store, and how the jobs of dead ones are taken over."""

from sqlalchemy import Select, delete, select

from onyx.jobs.errors import BadValueError, UnknownRunnerError
from onyx.jobs.ids import make_runner_id
from onyx.jobs.models import Job
from onyx.jobs.process_identity import ProcessIdentity
from onyx.jobs.records import RunnerRecord
from onyx.jobs.status import Outcome
from onyx.jobs.store.database import Concern, Transaction
from onyx.jobs.store.lifecycle import find_job, stop_attempt
from onyx.jobs.store.rows import to_job, to_runner
from onyx.jobs.store.tables import AttemptRow, RunnerRow

GAP = 1 / 3
"""A pause of more than this part of a lease between two calls of a runner is a gap."""

FORGOTTEN_SECONDS = 7 * 86400.0
"""A runner that has not reached the store for so long is deleted from the list."""


class Runners(Concern):
    """The registered runners."""

    async def register(self, holder: ProcessIdentity) -> str:
        """Register a runner; its id. It must reach the store for one lease time before it may expire leases."""
        async with self._database.writing() as tx:
            await _delete_silent(tx)
            row = RunnerRow(
                id=make_runner_id(),
                host=holder.host,
                pid=holder.pid,
                started=holder.started,
                boot=holder.boot,
                reached_since=tx.now,
                reached_at=tx.now,
            )
            tx.session.add(row)
            return row.id

    async def report_alive(self, runner_id: str) -> RunnerRecord:
        """Note that this runner is alive and reaches the store. Runners call this several times per lease time."""
        async with self._database.writing() as tx:
            row = await touch(tx, runner_id, self._database.lease_seconds)
            return to_runner(row, tx.now, self._database.lease_seconds)

    async def list(self, host: str | None = None) -> tuple[RunnerRecord, ...]:
        """All runners, or those of one host, longest silent first."""
        query = select(RunnerRow).order_by(RunnerRow.reached_at)
        if host is not None:
            query = query.where(RunnerRow.host == host)
        async with self._database.reading() as session:
            now = await self._database.clock.now(session)
            return tuple(to_runner(row, now, self._database.lease_seconds) for row in await session.scalars(query))

    async def expire_leases(self, runner_id: str) -> tuple[Job, ...]:
        """Take jobs with a lapsed lease from their runners; `attempt` of each returned job is the lost one.

        Nothing happens unless this runner has itself reached the store for one lease time without a gap. So after an
        outage of the database, every runner has time to renew its leases first.
        """
        async with self._database.writing() as tx:
            me = await touch(tx, runner_id, self._database.lease_seconds)
            if tx.now - me.reached_since < self._database.lease_seconds:
                return ()
            return await _lose(tx, lapsed_query(tx.now), runner_id)

    async def replace_dead(self, runner_id: str, dead: RunnerRecord) -> tuple[Job, ...]:
        """Take the jobs of a runner on the same host at once. The caller knows that its process has ended."""
        async with self._database.writing() as tx:
            me = await touch(tx, runner_id, self._database.lease_seconds)
            if dead.id == runner_id:
                raise BadValueError("a runner cannot replace itself: pass the record of the dead runner")
            if dead.holder.host != me.host:
                raise BadValueError(
                    f"whether a runner on {dead.holder.host} is dead cannot be known on {me.host}: "
                    "wait until its leases lapse"
                )
            jobs = await _lose(tx, held_query(dead.id), runner_id)
            await tx.session.execute(delete(RunnerRow).where(RunnerRow.id == dead.id))
            return jobs

    async def retire(self, runner_id: str) -> None:
        """Remove a runner that stops in order from the list."""
        async with self._database.writing() as tx:
            await tx.session.execute(delete(RunnerRow).where(RunnerRow.id == runner_id))


async def touch(tx: Transaction, runner_id: str, lease_seconds: float) -> RunnerRow:
    """Note that a runner reaches the store. After a gap or a jump of the clock, `reached_since` starts anew."""
    row = await tx.session.get(RunnerRow, runner_id, with_for_update=True)
    if row is None:
        raise UnknownRunnerError(f"no runner {runner_id[:80]!r} is registered, or it was replaced: register again")
    if abs(tx.now - row.reached_at) > lease_seconds * GAP:
        row.reached_since = row.reached_at = tx.now
    row.reached_at = max(row.reached_at, tx.now)  # the later of two concurrent calls may commit first
    return row


def held_query(runner_id: str) -> Select[AttemptRow]:
    """The live attempts of one runner."""
    live = select(AttemptRow).where(AttemptRow.runner_id == runner_id, AttemptRow.ended_at.is_(None))
    return live.order_by(AttemptRow.job_id)  # one order for all transactions that lock several jobs: no deadlock


def lapsed_query(now: float) -> Select[AttemptRow]:
    """The live attempts whose leases have lapsed."""
    lapsed = select(AttemptRow).where(AttemptRow.ended_at.is_(None), AttemptRow.lease_until < now)
    return lapsed.order_by(AttemptRow.job_id)


async def _lose(tx: Transaction, query: Select[AttemptRow], runner_id: str) -> tuple[Job, ...]:
    """End as lost the attempts that the query finds, and still finds once their jobs are locked."""
    jobs = []
    for found in (await tx.session.scalars(query)).all():
        job = await find_job(tx, found.job_id)
        again = query.where(AttemptRow.job_id == found.job_id, AttemptRow.number == found.number)
        attempt = (await tx.session.scalars(again.execution_options(populate_existing=True))).one_or_none()
        if job is None or attempt is None:
            continue  # it ended, or its runner renewed the lease, while this transaction waited for the lock
        await stop_attempt(tx, job, attempt, Outcome.LOST, runner_id)
        jobs.append(to_job(job))
    return tuple(jobs)


async def _delete_silent(tx: Transaction) -> None:
    live = select(AttemptRow.runner_id).where(AttemptRow.ended_at.is_(None))
    silent = RunnerRow.reached_at < tx.now - FORGOTTEN_SECONDS
    await tx.session.execute(delete(RunnerRow).where(silent, RunnerRow.id.not_in(live)))

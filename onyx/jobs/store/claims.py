"""Claiming: a job and its devices in one transaction, each to one runner only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, func, literal, select, union_all

from onyx.jobs.errors import BadValueError
from onyx.jobs.models import ClaimedJob, DeviceNeed, Lease, RunnerDevice
from onyx.jobs.status import JobStatus
from onyx.jobs.store import json_text
from onyx.jobs.store.database import CLAIM_LOCK, Concern, Transaction
from onyx.jobs.store.lifecycle import find_job, move
from onyx.jobs.store.rows import join_spec, load_needs, to_job
from onyx.jobs.store.runners import touch
from onyx.jobs.store.tables import AttemptRow, DeviceRow, JobRow, OwnerRow, RunnerRow, SamplesRow

PATIENCE_SECONDS = 600.0
"""A job that waits longer for several devices at once keeps smaller jobs from slipping in before it."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The waiting jobs of one owner that need the same devices."""

    owner: str
    """Whose."""

    needs: tuple[DeviceNeed, ...]
    """What each needs; empty for jobs that are to be prepared."""

    key: str | None
    """`needs` as the database spells it."""

    oldest: float
    """When the first of them was created."""

    since: float
    """When the first of them began to wait."""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """What each owner already has."""

    busy: Mapping[str, int]
    """How many jobs are in hand."""

    served: Mapping[str, float]
    """When an owner last got devices."""

    limit: int | None
    """How many jobs one owner may have in hand."""


def choose_next_job(
    groups: Sequence[Waiting], owners: Owners, devices: Sequence[RunnerDevice], free: Sequence[RunnerDevice], now: float
) -> tuple[Waiting, tuple[RunnerDevice, ...]] | None:
    """The next group and its devices: fewest in hand first, then least recently served, then oldest."""
    for group in sorted(groups, key=lambda group: _turn(group, owners)):
        if owners.limit is not None and owners.busy.get(group.owner, 0) >= owners.limit:
            continue
        chosen = assign_devices(group.needs, free)
        if chosen is not None:
            return group, chosen
        if now - group.since > PATIENCE_SECONDS and assign_devices(group.needs, devices) is not None:
            return None  # devices become free one by one: let them gather
    return None


def _turn(group: Waiting, owners: Owners) -> tuple[int, float, float, str]:
    return owners.busy.get(group.owner, 0), owners.served.get(group.owner, 0.0), group.oldest, group.owner


def assign_devices(needs: Sequence[DeviceNeed], devices: Sequence[RunnerDevice]) -> tuple[RunnerDevice, ...] | None:
    """A device for each need, in order; None when they do not suffice. Named needs choose first."""
    spare = {device.name: device for device in devices}
    chosen: dict[int, RunnerDevice] = {}
    for rank, need in sorted(enumerate(needs), key=lambda ranked: ranked[1].name is None):
        match = next((device for device in spare.values() if _suits(device, need)), None)
        if match is None:
            return None
        chosen[rank] = spare.pop(match.name)
    return tuple(chosen[rank] for rank in range(len(needs)))


def _suits(device: RunnerDevice, need: DeviceNeed) -> bool:
    return device.kind == need.kind and need.name in (None, device.name)


class Claims(Concern):
    """What a runner may work on."""

    async def waiting_phases(self) -> frozenset[JobStatus]:
        """Which work waits: to be prepared, to be trained. Takes no lock, because most looks find nothing."""
        phases = (JobStatus.VALIDATING, JobStatus.QUEUED)
        found = [
            select(literal(phase)).where(select(JobRow.id).where(*_is_waiting(phase)).exists()) for phase in phases
        ]
        async with self._database.reading() as session:
            return frozenset(JobStatus(phase) for phase in await session.scalars(union_all(*found)))

    async def claim_validating(self, runner_id: str, *, max_per_owner: int | None = None) -> ClaimedJob | None:
        """The next job to prepare. Needs no device."""
        return await self._claim(runner_id, JobStatus.VALIDATING, (), max_per_owner)

    async def claim_queued(
        self, runner_id: str, devices: Sequence[RunnerDevice], *, max_per_owner: int | None = None
    ) -> ClaimedJob | None:
        """The next job that fits into what is free of `devices`, and those devices.

        `devices` are all that the runner has, in use or not: the store knows which are lent.
        """
        if len({device.name for device in devices}) < len(devices):
            raise BadValueError("two devices have the same name")
        return await self._claim(runner_id, JobStatus.QUEUED, devices, max_per_owner)

    async def lent_devices(self, host: str) -> dict[str, Lease]:
        """Who uses which device of a host."""
        query = select(DeviceRow.name, DeviceRow.job_id, DeviceRow.attempt).where(DeviceRow.host == host)
        async with self._database.reading() as session:
            rows = await session.execute(query)
            return {name: Lease(job_id=job_id, attempt=attempt) for name, job_id, attempt in rows}

    async def _claim(
        self, runner_id: str, phase: JobStatus, devices: Sequence[RunnerDevice], limit: int | None
    ) -> ClaimedJob | None:
        async with self._database.writing(
            CLAIM_LOCK
        ) as tx:  # one chooses at a time: turns, limits and devices are then exact
            runner = await touch(tx, runner_id, self._database.lease_seconds)
            free = await _free(tx, runner.host, devices) if devices else []
            while groups := await _waiting(tx, phase):
                choice = choose_next_job(groups, await _owners(tx, phase, limit), devices, free, tx.now)
                if choice is None:
                    return None
                group, chosen = choice
                oldest = (await tx.session.scalars(oldest_query(phase, group.owner, group.key))).one_or_none()
                job = await find_job(tx, oldest) if oldest is not None else None
                if job is not None and job.status == phase:
                    return await self._take(tx, job, runner, chosen)
                # Its owner was quicker and has cancelled or paused it: look again.
            return None

    async def _take(
        self, tx: Transaction, job: JobRow, runner: RunnerRow, devices: tuple[RunnerDevice, ...]
    ) -> ClaimedJob:
        job.attempt += 1
        phase = JobStatus.VALIDATING if job.status == JobStatus.VALIDATING else JobStatus.RUNNING
        attempt = AttemptRow(
            job_id=job.id,
            number=job.attempt,
            runner_id=runner.id,
            host=runner.host,
            phase=phase,
            devices=json_text.dump([device.name for device in devices]),
            claimed_at=tx.now,
            lease_until=tx.now + self._database.lease_seconds,
        )
        tx.session.add(attempt)
        await tx.session.flush()
        for device in devices:
            tx.session.add(DeviceRow(host=runner.host, name=device.name, job_id=job.id, attempt=job.attempt))
        if phase is JobStatus.RUNNING:
            await _start(tx, job, devices)
        await tx.session.flush()
        samples = await tx.session.get(SamplesRow, job.id)
        return ClaimedJob(
            job=to_job(job),
            spec=join_spec(job.spec, samples.samples if samples else None),
            lease=Lease(job_id=job.id, attempt=job.attempt),
            lease_until=attempt.lease_until,
            devices=devices,
        )


async def _start(tx: Transaction, job: JobRow, devices: tuple[RunnerDevice, ...]) -> None:
    job.started_at = job.started_at or tx.now
    names = [device.name for device in devices]
    move(tx, job, JobStatus.RUNNING, f"Attempt {job.attempt} runs on {', '.join(names)}", devices=names)
    owner = await tx.session.get_one(OwnerRow, job.owner)
    owner.served_at = tx.now


async def _free(tx: Transaction, host: str, devices: Sequence[RunnerDevice]) -> list[RunnerDevice]:
    lent = set(await tx.session.scalars(select(DeviceRow.name).where(DeviceRow.host == host)))
    return [device for device in devices if device.name not in lent]


async def _waiting(tx: Transaction, phase: JobStatus) -> list[Waiting]:
    rows = await tx.session.execute(waiting_query(phase))
    return [
        Waiting(owner=owner, needs=load_needs(needs), key=needs, oldest=oldest, since=since or oldest)
        for owner, needs, oldest, since in rows
    ]


async def _owners(tx: Transaction, phase: JobStatus, limit: int | None) -> Owners:
    busy = {owner: count for owner, count in await tx.session.execute(busy_query(phase))}  # noqa: C416 - for the types
    served = {}
    if phase is JobStatus.QUEUED:
        waiting = select(JobRow.owner).where(JobRow.status == phase)
        rows = await tx.session.execute(select(OwnerRow.name, OwnerRow.served_at).where(OwnerRow.name.in_(waiting)))
        served = {name: at for name, at in rows if at is not None}
    return Owners(busy=busy, served=served, limit=limit)


def waiting_query(phase: JobStatus) -> Select[str, str | None, float, float | None]:
    """Waiting jobs by owner and need: few groups, however many jobs."""
    found = select(JobRow.owner, JobRow.needs, func.min(JobRow.created_at), func.min(JobRow.queued_at))
    return found.where(*_is_waiting(phase)).group_by(JobRow.owner, JobRow.needs)


def busy_query(phase: JobStatus) -> Select[str, int]:
    """How many jobs each owner has in hand: in preparation, or running."""
    count = select(JobRow.owner, func.count()).group_by(JobRow.owner)
    if phase is JobStatus.VALIDATING:
        return count.where(JobRow.status == phase, _held())
    return count.where(JobRow.status == JobStatus.RUNNING)


def oldest_query(phase: JobStatus, owner: str, needs: str | None) -> Select[str]:
    """The first in a group."""
    same = JobRow.needs == needs if needs is not None else JobRow.needs.is_(None)
    found = select(JobRow.id).where(*_is_waiting(phase), JobRow.owner == owner, same)
    return found.order_by(JobRow.created_at, JobRow.id).limit(1)


def _is_waiting(phase: JobStatus) -> tuple[ColumnElement[bool], ...]:
    waits = JobRow.status == phase
    return (waits, ~_held()) if phase is JobStatus.VALIDATING else (waits,)


def _held() -> ColumnElement[bool]:
    """Whether an attempt is live: a job that is being prepared keeps its status."""
    live = select(AttemptRow.number).where(AttemptRow.job_id == JobRow.id, AttemptRow.ended_at.is_(None))
    return live.exists()

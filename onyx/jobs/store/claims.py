"""Claims: a runner takes a job and its devices in one transaction. No other runner gets either."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, func, literal, select, union_all

from onyx.jobs.errors import BadValueError
from onyx.jobs.models import ClaimedJob, DeviceNeed, Lease, RunnerDevice
from onyx.jobs.status import JobStatus
from onyx.jobs.store import json_text
from onyx.jobs.store.database import CLAIM_LOCK, Concern, Transaction
from onyx.jobs.store.lifecycle import change_status, find_job
from onyx.jobs.store.rows import join_spec, load_needs, to_job
from onyx.jobs.store.runners import touch
from onyx.jobs.store.tables import AttemptRow, DeviceRow, JobRow, OwnerRow, RunnerRow, SamplesRow

PATIENCE_SECONDS = 600.0
"""A job that has waited longer for its devices is not overtaken by smaller jobs any more."""


@dataclass(frozen=True, kw_only=True)
class WaitingGroup:
    """The waiting jobs of one owner that need the same devices."""

    owner: str
    """Whose jobs."""

    needs: tuple[DeviceNeed, ...]
    """What each needs; empty for jobs that are to be prepared."""

    key: str | None
    """`needs` as the database stores them."""

    oldest: float
    """When the first of them was created."""

    since: float
    """When the first of them began to wait."""


@dataclass(frozen=True, kw_only=True)
class OwnerShares:
    """What each owner has had so far."""

    busy: Mapping[str, int]
    """How many jobs of each owner runners hold."""

    served: Mapping[str, float]
    """When each owner last got devices."""

    limit: int | None
    """How many jobs of one owner runners may hold at once; None for any number."""


def choose_next_job(
    groups: Sequence[WaitingGroup],
    shares: OwnerShares,
    devices: Sequence[RunnerDevice],
    free: Sequence[RunnerDevice],
    now: float,
) -> tuple[WaitingGroup, tuple[RunnerDevice, ...]] | None:
    """The next group and its devices. Owners with the fewest held jobs come first, then the least recently served."""
    for group in sorted(groups, key=lambda group: _turn(group, shares)):
        if shares.limit is not None and shares.busy.get(group.owner, 0) >= shares.limit:
            continue
        chosen = assign_devices(group.needs, free)
        if chosen is not None:
            return group, chosen
        if now - group.since > PATIENCE_SECONDS and assign_devices(group.needs, devices) is not None:
            return None  # devices become free one by one: keep them free until there are enough
    return None


def _turn(group: WaitingGroup, shares: OwnerShares) -> tuple[int, float, float, str]:
    return shares.busy.get(group.owner, 0), shares.served.get(group.owner, 0.0), group.oldest, group.owner


def assign_devices(needs: Sequence[DeviceNeed], devices: Sequence[RunnerDevice]) -> tuple[RunnerDevice, ...] | None:
    """A device for each need, in order; None when the devices do not suffice. Needs that name a device choose first."""
    spare = {device.name: device for device in devices}
    chosen: dict[int, RunnerDevice] = {}
    for rank, need in sorted(enumerate(needs), key=lambda ranked: ranked[1].name is None):
        match = next((device for device in spare.values() if _fits(device, need)), None)
        if match is None:
            return None
        chosen[rank] = spare.pop(match.name)
    return tuple(chosen[rank] for rank in range(len(needs)))


def _fits(device: RunnerDevice, need: DeviceNeed) -> bool:
    return device.kind == need.kind and need.name in (None, device.name)


class Claims(Concern):
    """Waiting jobs, and who holds which device."""

    async def waiting_phases(self) -> frozenset[JobStatus]:
        """Whether jobs wait to be prepared (validating) or to be trained (queued). Takes no lock."""
        phases = (JobStatus.VALIDATING, JobStatus.QUEUED)
        found = [
            select(literal(phase)).where(select(JobRow.id).where(*_is_waiting(phase)).exists()) for phase in phases
        ]
        async with self._database.reading() as session:
            return frozenset(JobStatus(phase) for phase in await session.scalars(union_all(*found)))

    async def claim_validating(self, runner_id: str, *, max_per_owner: int | None = None) -> ClaimedJob | None:
        """Take the next job to prepare. It needs no device."""
        return await self._claim(runner_id, JobStatus.VALIDATING, (), max_per_owner)

    async def claim_queued(
        self, runner_id: str, devices: Sequence[RunnerDevice], *, max_per_owner: int | None = None
    ) -> ClaimedJob | None:
        """Take the next job that fits on the free ones of `devices`, with the devices it needs.

        `devices` are all devices of the runner, in use or not: the store knows which are lent.
        """
        if len({device.name for device in devices}) < len(devices):
            raise BadValueError("two devices have the same name: give each device of a host its own")
        return await self._claim(runner_id, JobStatus.QUEUED, devices, max_per_owner)

    async def lent_devices(self, host: str) -> dict[str, Lease]:
        """The devices of a host that are in use, and the lease of each."""
        query = select(DeviceRow.name, DeviceRow.job_id, DeviceRow.attempt).where(DeviceRow.host == host)
        async with self._database.reading() as session:
            rows = await session.execute(query)
            return {name: Lease(job_id=job_id, attempt=attempt) for name, job_id, attempt in rows}

    async def _claim(
        self, runner_id: str, phase: JobStatus, devices: Sequence[RunnerDevice], limit: int | None
    ) -> ClaimedJob | None:
        # One runner chooses at a time, so that turns, limits and devices are exact.
        async with self._database.writing(CLAIM_LOCK) as tx:
            runner = await touch(tx, runner_id, self._database.lease_seconds)
            free = await _free_devices(tx, runner.host, devices) if devices else []
            while groups := await _waiting_groups(tx, phase):
                choice = choose_next_job(groups, await _owner_shares(tx, phase, limit), devices, free, tx.now)
                if choice is None:
                    return None
                group, chosen = choice
                oldest = (await tx.session.scalars(oldest_query(phase, group.owner, group.key))).one_or_none()
                job = await find_job(tx, oldest) if oldest is not None else None
                if job is not None and job.status == phase:
                    return await self._take(tx, job, runner, chosen)
                # Its owner has cancelled or paused it since the query: choose again.
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
    change_status(tx, job, JobStatus.RUNNING, f"Attempt {job.attempt} runs on {', '.join(names)}", devices=names)
    owner = await tx.session.get_one(OwnerRow, job.owner)
    owner.served_at = tx.now


async def _free_devices(tx: Transaction, host: str, devices: Sequence[RunnerDevice]) -> list[RunnerDevice]:
    lent = set(await tx.session.scalars(select(DeviceRow.name).where(DeviceRow.host == host)))
    return [device for device in devices if device.name not in lent]


async def _waiting_groups(tx: Transaction, phase: JobStatus) -> list[WaitingGroup]:
    rows = await tx.session.execute(waiting_query(phase))
    return [
        WaitingGroup(owner=owner, needs=load_needs(needs), key=needs, oldest=oldest, since=since or oldest)
        for owner, needs, oldest, since in rows
    ]


async def _owner_shares(tx: Transaction, phase: JobStatus, limit: int | None) -> OwnerShares:
    busy = {owner: count for owner, count in await tx.session.execute(busy_query(phase))}  # noqa: C416 - for the types
    served = {}
    if phase is JobStatus.QUEUED:
        waiting = select(JobRow.owner).where(JobRow.status == phase)
        rows = await tx.session.execute(select(OwnerRow.name, OwnerRow.served_at).where(OwnerRow.name.in_(waiting)))
        served = {name: at for name, at in rows if at is not None}
    return OwnerShares(busy=busy, served=served, limit=limit)


def waiting_query(phase: JobStatus) -> Select[str, str | None, float, float | None]:
    """Waiting jobs by owner and needs: few groups, however many jobs."""
    found = select(JobRow.owner, JobRow.needs, func.min(JobRow.created_at), func.min(JobRow.queued_at))
    return found.where(*_is_waiting(phase)).group_by(JobRow.owner, JobRow.needs)


def busy_query(phase: JobStatus) -> Select[str, int]:
    """How many jobs of each owner are being prepared, or are running."""
    count = select(JobRow.owner, func.count()).group_by(JobRow.owner)
    if phase is JobStatus.VALIDATING:
        return count.where(JobRow.status == phase, _held())
    return count.where(JobRow.status == JobStatus.RUNNING)


def oldest_query(phase: JobStatus, owner: str, needs: str | None) -> Select[str]:
    """The oldest job of a group."""
    same = JobRow.needs == needs if needs is not None else JobRow.needs.is_(None)
    found = select(JobRow.id).where(*_is_waiting(phase), JobRow.owner == owner, same)
    return found.order_by(JobRow.created_at, JobRow.id).limit(1)


def _is_waiting(phase: JobStatus) -> tuple[ColumnElement[bool], ...]:
    waits = JobRow.status == phase
    return (waits, ~_held()) if phase is JobStatus.VALIDATING else (waits,)


def _held() -> ColumnElement[bool]:
    """Whether an attempt is live. A job keeps its status `validating` while it is being prepared."""
    live = select(AttemptRow.number).where(AttemptRow.job_id == JobRow.id, AttemptRow.ended_at.is_(None))
    return live.exists()

"""A reference model of the store: what its rows must be after any order of claims, crashes and requests."""

from dataclasses import dataclass, field

from sqlalchemy import select

from onyx.jobs.models import ClaimedJob, Job, Lease
from onyx.jobs.status import JobStatus
from onyx.jobs.store.lifecycle import MAX_RETRIES
from onyx.jobs.store.rows import to_job
from onyx.jobs.store.store import Store
from onyx.jobs.store.tables import AttemptRow, DeviceRow, EventRow, JobRow
from onyx.training.contract.attempt import Event

Snapshot = tuple[
    list[tuple[str, int]],  # live attempts
    list[tuple[str, str, str]],  # lent devices
    list[Job],
    list[tuple[str, int, int | None, int | None]],  # events
]


@dataclass
class Held:
    """A lease that the store gave out, and how it ended."""

    lease: Lease
    runner: str
    host: str
    phase: JobStatus
    devices: frozenset[str]
    live: bool = True
    reported: str | None = None
    """The end that its own runner reported."""

    file: list[Event] = field(default_factory=list)
    """Its events.jsonl."""


class ReferenceModel:
    """Which leases are valid, which jobs have ended, which lines were mirrored."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.ended: dict[str, Job] = {}
        self.held: list[Held] = []
        self.mirrored: dict[str, set[tuple[int, int]]] = {}

    def take(self, claimed: ClaimedJob, runner: str, host: str, phase: JobStatus) -> Held:
        names = frozenset(device.name for device in claimed.devices)
        held = Held(claimed.lease, runner, host, phase, names)
        attempts = [each.lease.attempt for each in self.held if each.lease.job_id == claimed.job.id]
        assert claimed.lease.attempt == max(attempts, default=0) + 1
        self.held.append(held)
        return held

    def pick(self, pick: int) -> Held:
        """Mostly a live lease, else any lease so far."""
        live = [held for held in self.held if held.live]
        among = live if live and pick % 3 else self.held
        return among[pick // 3 % len(among)]

    def latest(self, held: Held) -> bool:
        later = [each for each in self.held if each.lease.job_id == held.lease.job_id]
        return held is later[-1]

    def note(self, job: Job) -> None:
        former = self.ended.get(job.id)
        if former is not None:
            assert (job.status, job.result, job.error) == (former.status, former.result, former.error)
        elif job.status.terminal:
            self.ended[job.id] = job

    def lose(self, job: Job) -> None:
        for held in self.held:
            if held.lease.job_id == job.id:
                held.live = False

    def same_job(self, one: Held, other: Held) -> bool:
        return one.lease.job_id == other.lease.job_id

    def check_leases(self, attempts: list[tuple[str, int]], devices: list[tuple[str, str, str]]) -> None:
        """At most one live attempt, no device twice."""
        live = [held for held in self.held if held.live]
        assert sorted((held.lease.job_id, held.lease.attempt) for held in live) == sorted(attempts)
        assert len({held.lease.job_id for held in live}) == len(live)
        lent = [(held.host, name, held.lease.job_id) for held in live for name in held.devices]
        assert sorted(lent) == sorted(devices)
        assert len({(host, name) for host, name, _ in lent}) == len(lent)

    def check_jobs(self, jobs: list[Job]) -> None:
        """An end is final, and a job runs exactly while a lease of it is live."""
        running = {held.lease.job_id for held in self.held if held.live and held.phase is JobStatus.RUNNING}
        assert sorted(job.id for job in jobs) == sorted(self.jobs)
        for job in jobs:
            self.note(job)
            assert (job.id in running) == (job.status is JobStatus.RUNNING)
            assert job.lost_attempts <= MAX_RETRIES or job.status in (JobStatus.FAILED, JobStatus.CANCELLED)

    def check_events(self, events: list[tuple[str, int, int | None, int | None]]) -> None:
        """No event is lost or stored twice, and the numbers have no gap."""
        for job_id in self.jobs:
            mine = [event for event in events if event[0] == job_id]
            assert [seq for _, seq, _, _ in mine] == list(range(1, len(mine) + 1))
            lines = [(attempt, number) for _, _, attempt, number in mine if number is not None]
            assert len(set(lines)) == len(lines)
            assert set(lines) == self.mirrored[job_id]


async def read_snapshot(store: Store) -> Snapshot:
    """All rows that the model checks."""
    live = select(AttemptRow.job_id, AttemptRow.number).where(AttemptRow.ended_at.is_(None))
    lent = select(DeviceRow.host, DeviceRow.name, DeviceRow.job_id)
    said = select(EventRow.job_id, EventRow.seq, EventRow.attempt, EventRow.line).order_by(EventRow.seq)
    async with store.database.reading() as session:
        return (
            [(job_id, number) for job_id, number in await session.execute(live)],
            [(host, name, job_id) for host, name, job_id in await session.execute(lent)],
            [to_job(row) for row in await session.scalars(select(JobRow))],
            [(job_id, seq, attempt, number) for job_id, seq, attempt, number in await session.execute(said)],
        )

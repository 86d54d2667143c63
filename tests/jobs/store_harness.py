"""A store for tests, with short ways to bring it into a state."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from onyx.jobs.ids import JobKind
from onyx.jobs.models import ClaimedJob, DeviceNeed, Job, RunnerDevice
from onyx.jobs.process_identity import ProcessIdentity
from onyx.jobs.store.database import DatabaseClock, make_engine
from onyx.jobs.store.store import Store
from onyx.jobs.store.tables import Base
from onyx.training.contract.attempt import Event, Failure, Result
from onyx.training.contract.spec import DataSpec, JobSpec

LEASE = 30.0
CPU = "cpu"
SPEC = JobSpec(model="onyx/tiny", data=DataSpec(texts=["one", "two"]))
DEVICES = (RunnerDevice(name="cpu:0", kind=CPU), RunnerDevice(name="cpu:1", kind=CPU))
FAILURE = Failure(code="bad_data", message="line 3 is not JSON", findings=[{"line": 3}])
RESULT = Result(
    updates=10,
    skipped=0,
    samples=20,
    trained_tokens=300,
    seconds=1.5,
    final_loss=0.5,
    best_loss=0.4,
    best_evaluation_loss=None,
    epochs=[],
    peak_bytes=[1000],
    effective_batch=2,
    micro_batch=2,
    accumulation_steps=1,
)


class ShiftedClock(DatabaseClock):
    """The database's clock, `ahead` by some seconds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    async def now(self, session: AsyncSession) -> float:
        return await super().now(session) + self.ahead


def holder(host: str = "alpha", pid: int = 1) -> ProcessIdentity:
    return ProcessIdentity(host=host, pid=pid, started=100 + pid, boot="boot-1")


def line(number: int, message: str = "hello") -> Event:
    return Event(line=number, time=1000.0 + number, kind="message", message=message)


def metrics(number: int, update: int, loss: float) -> Event:
    data = {"update": update, "loss": loss}
    return Event(line=number, time=1000.0 + number, kind="metrics", message=f"update {update}", data=data)


class StoreHarness:
    """A store, its clock, and jobs in a wanted state."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ShiftedClock()
        self.store = self.open_again()

    def open_again(self) -> Store:
        """The same store, as another process would open it."""
        return Store(make_engine(self.url), lease_seconds=LEASE, clock=self.clock)

    async def delete_all_rows(self) -> None:
        """Delete every row: faster than a new database."""
        async with self.store.database.engine.begin() as connection:
            for table in reversed(Base.metadata.sorted_tables):
                await connection.execute(delete(table))

    async def runner(self, host: str = "alpha", pid: int = 1) -> str:
        return await self.store.runners.register(holder(host, pid))

    async def job(self, owner: str = "ann") -> Job:
        return await self.store.jobs.create(SPEC, owner, JobKind.ACCUMULATION)

    async def queued(self, owner: str = "ann", *, devices: int = 1, name: str | None = None) -> Job:
        """A job that waits for devices. No other job may be validating."""
        job = await self.job(owner)
        claimed = await self.store.claims.claim_validating(await self.runner("preparer"))
        assert claimed is not None
        assert claimed.job.id == job.id
        needs = [DeviceNeed(kind=CPU, name=name)] * devices
        return await self.store.attempts.report_prepared(claimed.lease, needs, {"plan": {"window": 2}})

    async def running(self, owner: str = "ann", runner: str | None = None) -> ClaimedJob:
        """A job that a runner has claimed with its device."""
        await self.queued(owner)
        claimed = await self.store.claims.claim_queued(runner or await self.runner(), DEVICES)
        assert claimed is not None
        return claimed

    async def pass_time(self, seconds: float, *reaching: str) -> None:
        """Advance the clock in small steps, while the runners `reaching` report that they are alive."""
        end = self.clock.ahead + seconds
        while self.clock.ahead < end:
            self.clock.ahead = min(end, self.clock.ahead + LEASE / 5)
            for runner in reaching:
                await self.store.runners.report_alive(runner)


def wrap_call(concern: object, name: str, around: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
    """Replace one method of a store's concern by `around`, which gets the original call and returns the answer."""
    method = getattr(concern, name)

    async def wrapped(*arguments: Any, **options: Any) -> Any:
        return await around(partial(method, *arguments, **options))

    setattr(concern, name, wrapped)

"""Transactions: what every part of the store is built on."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from onyx.jobs.clock import DatabaseClock
from onyx.jobs.engine import READ_ONLY
from onyx.jobs.errors import StoreUnavailableError

LEASE_SECONDS = 30.0
"""How long a silent runner keeps a job."""

CLAIM_LOCK = 0x0_1A1E
"""PostgreSQL's name of the lock that lets one runner choose at a time."""


@dataclass(frozen=True)
class Transaction:
    """All or nothing."""

    session: AsyncSession
    """Where it happens."""

    now: float
    """When it began, by the database's clock."""


class Database:
    """An engine, a clock and how long a lease is."""

    def __init__(
        self, engine: AsyncEngine, *, lease_seconds: float = LEASE_SECONDS, clock: DatabaseClock | None = None
    ) -> None:
        self.engine = engine
        self.lease_seconds = lease_seconds
        self._clock = clock or DatabaseClock()
        self._writer = async_sessionmaker(engine, expire_on_commit=False)
        self._reader = async_sessionmaker(engine.execution_options(**{READ_ONLY: True}))

    @asynccontextmanager
    async def writing(self, lock: int | None = None) -> AsyncIterator[Transaction]:
        """A transaction that commits at the end, or leaves nothing behind; one at a time of those that name a lock."""
        with available():
            async with self._writer.begin() as session:
                if lock is not None and session.get_bind().dialect.name == "postgresql":  # on SQLite writers are alone
                    await session.execute(select(func.pg_advisory_xact_lock(lock)))
                yield Transaction(session, await self._clock.now(session))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A look at the tables that waits for no writer."""
        with available():
            async with self._reader() as session:
                yield session

    async def now(self) -> float:
        """The database's clock; also the cheapest way to see that it answers."""
        async with self.reading() as session:
            return await self._clock.now(session)

    async def close(self) -> None:
        """Let go of all connections."""
        await self.engine.dispose()


@contextmanager
def available() -> Iterator[None]:
    """One error for all the ways in which a database can be away, so that callers know when to try again."""
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError):
        raise  # the database caught a defect: trying again would not help
    except (DBAPIError, StaleDataError, PoolTimeoutError, OSError, TimeoutError) as error:
        raise StoreUnavailableError(_reason(error)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "asyncpg":  # while connecting, nobody wraps the driver's errors
            raise StoreUnavailableError(_reason(error)) from error
        raise


def _reason(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return f"the job store does not answer, try again: {type(cause).__name__}: {cause}"

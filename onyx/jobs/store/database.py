"""The database of the store: its engine, its clock and its transactions."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any, cast

import aiosqlite
from sqlalchemy import URL, Connection, Double, event, func, literal_column, make_url, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import ConnectionPoolEntry

from onyx.jobs.errors import StoreUnavailableError, StoreUrlError

_SQLITE = literal_column("(julianday('now') - 2440587.5) * 86400.0", Double)
_POSTGRESQL = sql_cast(func.extract("epoch", func.clock_timestamp()), Double)


class DatabaseClock:
    """The database's clock, in seconds since the epoch: one clock for processes on all hosts."""

    async def now(self, session: AsyncSession) -> float:
        """The time now, also inside of a transaction (not when it began)."""
        expression = _SQLITE if session.get_bind().dialect.name == "sqlite" else _POSTGRESQL
        now: float = (await session.execute(select(expression))).scalar_one()
        return now


READ_ONLY = "onyx_read_only"
"""Execution option of connections that only read: on SQLite they take no lock."""

BUSY_SECONDS = 10
"""How long a statement waits for a lock."""

ABANDONED_SECONDS = 30
"""How long PostgreSQL lets a silent client keep a transaction and its locks."""

_SQLITE_PRAGMAS = (
    f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}",  # first: the next one may have to wait
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",  # an accepted job survives a power cut
    "PRAGMA foreign_keys = ON",
)


def make_engine(url: str | URL) -> AsyncEngine:
    """An engine for `sqlite:///path` or `postgresql://user:password@host/name`."""
    parsed = parse_url(url)
    return _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)


def parse_url(url: str | URL) -> URL:
    """The same address with the driver that Onyx uses."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # its message may contain the password
        raise StoreUrlError("the store's address cannot be read: give sqlite:///path or postgresql://…") from None
    backend = parsed.drivername.partition("+")[0]
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or "mode" in parsed.query:
            raise StoreUrlError("the store must be a file that several processes can open: give sqlite:///path")
        return parsed.set(drivername="sqlite+aiosqlite")
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+asyncpg")
    raise StoreUrlError(f"the store can be sqlite:///path or postgresql://…, not {backend}")


def _sqlite(url: URL) -> AsyncEngine:
    engine = create_async_engine(url, connect_args={"timeout": BUSY_SECONDS, "async_creator_fn": _connect_sqlite})
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


async def _connect_sqlite(*arguments: Any, **options: Any) -> aiosqlite.Connection:
    """A connection. When the file cannot be opened, its thread is joined before the error is raised.

    aiosqlite only signals its thread to stop. That thread then calls the event loop once more, and raises when the loop
    is closed by then (as after a command that ends with this error).
    """
    connection: Any = aiosqlite.connect(*arguments, **options)
    thread: Thread = getattr(connection, "_thread", connection)  # before 0.22 the connection is the thread
    thread.daemon = True  # as SQLAlchemy does: an open connection does not keep the process alive
    try:
        return cast(aiosqlite.Connection, await connection)
    except BaseException:
        await asyncio.to_thread(thread.join)
        raise


def _prepare_sqlite(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver must not begin transactions
    cursor = connection.cursor()
    for pragma in _SQLITE_PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that first reads and then writes can fail at once, despite the busy time-out. So writers take the
    # lock at the start.
    reads = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _postgresql(url: URL) -> AsyncEngine:
    settings = {
        "application_name": "onyx",
        "jit": "off",  # compiling takes longer than any of these queries
        "lock_timeout": f"{BUSY_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{ABANDONED_SECONDS}s",
    }
    try:
        return create_async_engine(
            url,
            pool_pre_ping=True,  # after a restart of the database, calls get a new connection instead of an error
            connect_args={"timeout": BUSY_SECONDS, "command_timeout": ABANDONED_SECONDS, "server_settings": settings},
        )
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreUrlError("PostgreSQL needs a driver: pip install 'onyx-finetune[postgres]'") from None


LEASE_SECONDS = 30.0
"""How long a runner that sends no heartbeat keeps a job."""

CLAIM_LOCK = 0x0_1A1E
"""Key of the PostgreSQL advisory lock that lets one runner at a time choose a job."""


MAX_NAMES = 500
"""Names in one query: databases limit the number of parameters."""


@dataclass(frozen=True)
class Transaction:
    """An open transaction that writes."""

    session: AsyncSession
    """The session to write with."""

    now: float
    """When it began, by the database's clock."""


class Database:
    """The engine and clock of one store, and how long its leases last."""

    def __init__(
        self, engine: AsyncEngine, *, lease_seconds: float = LEASE_SECONDS, clock: DatabaseClock | None = None
    ) -> None:
        self.engine = engine
        self.lease_seconds = lease_seconds
        self.clock = clock or DatabaseClock()
        self._writer = async_sessionmaker(engine, expire_on_commit=False)
        self._reader = async_sessionmaker(engine.execution_options(**{READ_ONLY: True}))

    @asynccontextmanager
    async def writing(self, lock: int | None = None) -> AsyncIterator[Transaction]:
        """A transaction that commits at the end, or rolls back on an error. One at a time holds `lock`."""
        with available():
            async with self._writer.begin() as session:
                if lock is not None and session.get_bind().dialect.name == "postgresql":  # SQLite has one writer anyway
                    await session.execute(select(func.pg_advisory_xact_lock(lock)))
                yield Transaction(session, await self.clock.now(session))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A session that only reads, and waits for no writer."""
        with available():
            async with self._reader() as session:
                yield session

    async def now(self) -> float:
        """The database's clock; also the cheapest check that the database answers."""
        async with self.reading() as session:
            return await self.clock.now(session)

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()


class Concern:
    """One part of the store: the queries about one subject, on the shared database."""

    def __init__(self, database: Database) -> None:
        self._database = database


@contextmanager
def available() -> Iterator[None]:
    """Turn every error of an unreachable database into StoreUnavailableError, so that callers know when to retry."""
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError):
        raise  # a defect: trying again would not help
    except (DBAPIError, StaleDataError, PoolTimeoutError, OSError, TimeoutError) as error:
        raise StoreUnavailableError(_reason(error)) from error
    except Exception as error:
        if (
            type(error).__module__.partition(".")[0] == "asyncpg"
        ):  # SQLAlchemy does not wrap the driver's errors while connecting
            raise StoreUnavailableError(_reason(error)) from error
        raise


def _reason(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return f"the job store does not answer, try again: {type(cause).__name__}: {cause}"

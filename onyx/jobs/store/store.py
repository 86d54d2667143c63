"""The job store: one class with an attribute for each concern."""

import secrets
from typing import Self

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from onyx.jobs.store.attempts import Attempts
from onyx.jobs.store.claims import Claims
from onyx.jobs.store.configs import Configs
from onyx.jobs.store.control import JobControl
from onyx.jobs.store.database import LEASE_SECONDS, Database, DatabaseClock, make_engine
from onyx.jobs.store.events import EventLog
from onyx.jobs.store.inventory import Inventory
from onyx.jobs.store.jobs import Jobs
from onyx.jobs.store.keys import Keys
from onyx.jobs.store.migrate import migrate
from onyx.jobs.store.retention import Retention
from onyx.jobs.store.runners import Runners
from onyx.jobs.store.stranded import StrandedJobs
from onyx.jobs.store.tables import MarkerRow
from onyx.jobs.store.uploads import Uploads
from onyx.jobs.store.webhooks import Webhooks


class Store:
    """One job store, the same on SQLite and PostgreSQL; any number of processes may open it.

    Each attribute is one concern with a file of its own: `store.jobs.create`, `store.events.list`. Every method is one
    transaction. `StoreUnavailableError` means that the database is away and that the same call may be made again.
    """

    def __init__(
        self, engine: AsyncEngine, *, lease_seconds: float = LEASE_SECONDS, clock: DatabaseClock | None = None
    ) -> None:
        self.database = Database(engine, lease_seconds=lease_seconds, clock=clock)
        self.jobs = Jobs(self.database)
        self.control = JobControl(self.database)
        self.runners = Runners(self.database)
        self.claims = Claims(self.database)
        self.stranded = StrandedJobs(self.database)
        self.attempts = Attempts(self.database)
        self.events = EventLog(self.database)
        self.configs = Configs(self.database)
        self.keys = Keys(self.database)
        self.uploads = Uploads(self.database)
        self.webhooks = Webhooks(self.database)
        self.inventory = Inventory(self.database)
        self.retention = Retention(self.database)

    @property
    def lease_seconds(self) -> float:
        """How long a runner that sends no heartbeat keeps a job."""
        return self.database.lease_seconds

    async def now(self) -> float:
        """The database's clock; also the cheapest check that the database answers."""
        return await self.database.now()

    async def home_marker(self) -> str:
        """The random id that the marker file in ONYX_HOME must hold. The first call makes it."""
        async with self.database.writing() as tx:
            dialect = postgresql if tx.session.get_bind().dialect.name == "postgresql" else sqlite
            new = dialect.insert(MarkerRow).values(id=1, value=secrets.token_hex(16))
            await tx.session.execute(new.on_conflict_do_nothing())
            return (await tx.session.get_one(MarkerRow, 1)).value

    async def close(self) -> None:
        """Close all connections."""
        await self.database.close()

    @classmethod
    async def open(cls, url: str, *, lease_seconds: float = LEASE_SECONDS, clock: DatabaseClock | None = None) -> Self:
        """Connect, and bring the tables up to date."""
        store = cls(make_engine(url), lease_seconds=lease_seconds, clock=clock)
        try:
            await migrate(store.database.engine)
        except BaseException:
            await store.close()
            raise
        return store

"""The job store: everything that must outlive a process, behind one typed door."""

from typing import Self

from onyx.jobs.attempts import Attempts
from onyx.jobs.claims import Claims
from onyx.jobs.clock import DatabaseClock
from onyx.jobs.configs import Configs
from onyx.jobs.counting import Counting
from onyx.jobs.creation import Creation
from onyx.jobs.database import LEASE_SECONDS
from onyx.jobs.engine import make_engine
from onyx.jobs.events import EventLog
from onyx.jobs.keeping import Keeping
from onyx.jobs.keys import Keys
from onyx.jobs.migrate import migrate
from onyx.jobs.requests import Requests
from onyx.jobs.stranded import Stranded
from onyx.jobs.uploads import Uploads
from onyx.jobs.webhooks import Webhooks


class Store(
    Creation, Requests, Claims, Stranded, Attempts, EventLog, Configs, Keys, Uploads, Webhooks, Keeping, Counting
):
    """One job store, the same on SQLite and PostgreSQL; any number of processes may open it.

    Each parent has its file: what owners do (creation, requests, configs, keys, uploads), what runners do (runners,
    claims, stranded, attempts, webhooks), the events between them, and what operators see and clear away (counting,
    keeping). Every method is one transaction. `StoreUnavailableError` means that the database is away and that the same
    call may be made again.
    """

    @classmethod
    async def open(cls, url: str, *, lease_seconds: float = LEASE_SECONDS, clock: DatabaseClock | None = None) -> Self:
        """Connect, and bring the tables up to date."""
        store = cls(make_engine(url), lease_seconds=lease_seconds, clock=clock)
        try:
            await migrate(store.engine)
        except BaseException:
            await store.close()
            raise
        return store

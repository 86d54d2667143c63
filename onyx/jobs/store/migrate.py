"""Bringing a database's tables up to date, from code, also when several processes start at once."""

import asyncio
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from onyx.jobs.errors import MigrationError
from onyx.jobs.store.database import available, make_engine

_MIGRATION_LOCK = 0x0_1A1F
_ALEMBIC = threading.Lock()
"""Alembic keeps its context in module variables: one migration per process at a time."""


async def migrate(engine: AsyncEngine) -> None:
    """Up to this version's tables; nothing happens when they are there."""
    if not await is_migrated(engine):
        await asyncio.to_thread(upgrade, engine.url)


def upgrade(url: str | URL) -> None:
    """The same for callers without an event loop, such as a command line."""
    with _ALEMBIC:
        asyncio.run(_upgrade(url))


async def is_migrated(engine: AsyncEngine) -> bool:
    """Whether the tables are this version's."""
    with available():
        async with engine.connect() as connection:
            return await connection.run_sync(_revision) == ScriptDirectory.from_config(_config()).get_current_head()


async def _upgrade(url: str | URL) -> None:
    engine = make_engine(url)
    try:
        with available():
            async with engine.begin() as connection:  # on SQLite this takes the write lock: other processes wait here
                await connection.run_sync(_run)
    finally:
        await engine.dispose()


def _run(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    config = _config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise MigrationError(
            f"the database is at revision {_revision(connection)}, which this version of Onyx does not know: "
            "use the version that made it, or a newer one"
        ) from error


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    # The option is read with %-interpolation, and a directory's name may hold any character.
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config

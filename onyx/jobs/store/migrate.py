"""Migrations: bring the tables up to date when a store is opened, also by several processes at once."""

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
"""Alembic keeps its context in module variables, so a process runs one migration at a time."""


async def migrate(engine: AsyncEngine) -> None:
    """Migrate to the tables of this version, unless they are there."""
    if not await is_migrated(engine):
        await asyncio.to_thread(upgrade, engine.url)


def upgrade(url: str | URL) -> None:
    """The same for callers without an event loop, such as commands."""
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
            async with engine.begin() as connection:  # on SQLite this takes the write lock, so other processes wait
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
            "install the version of Onyx that made it, or a newer one"
        ) from error


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    # Alembic reads the option with %-interpolation, and a path may contain %.
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config

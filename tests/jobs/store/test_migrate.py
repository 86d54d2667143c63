import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text

from onyx.jobs.errors import MigrationError
from onyx.jobs.ids import JobKind
from onyx.jobs.store.database import make_engine
from onyx.jobs.store.migrate import is_migrated, migrate, upgrade
from onyx.jobs.store.store import Store
from onyx.jobs.store.tables import Base
from tests.jobs.conftest import Databases
from tests.jobs.store_harness import SPEC, StoreHarness

_DEFINITIONS = {
    "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name",
    "postgresql": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version' "
    "UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'public'::regnamespace AND conname <> 'alembic_version_pkc' ORDER BY 1",
}


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, Base.metadata))


async def definitions(url: str, *, create: bool) -> list[str]:
    engine = make_engine(url)
    async with engine.begin() as connection:
        if create:
            await connection.run_sync(Base.metadata.create_all)
        found = list(await connection.scalars(text(_DEFINITIONS[engine.dialect.name])))
    await engine.dispose()
    return found


async def test_models_and_migrations_agree(databases: Databases, harness: StoreHarness) -> None:
    async with harness.store.database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    made = await definitions(databases.empty(), create=True)
    assert len(made) > 8
    assert await definitions(harness.url, create=False) == made  # with the conditions of indexes, which Alembic skips


async def test_opening_a_store_makes_its_tables_once(databases: Databases) -> None:
    url = databases.empty()
    for count in (0, 1):
        store = await Store.open(url)
        assert len((await store.jobs.list()).jobs) == count
        await store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION)
        await migrate(store.database.engine)
        assert await is_migrated(store.database.engine)
        await store.close()


def test_processes_that_start_at_once_migrate_once(databases: Databases) -> None:
    command = [sys.executable, "-c", "import sys; from onyx.jobs.store.migrate import upgrade; upgrade(sys.argv[1])"]
    url = databases.empty()
    started = [subprocess.Popen([*command, url], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in started] == [("", 0)] * 2


async def test_tables_of_a_newer_version_are_left_alone(databases: Databases) -> None:
    url = databases.empty()
    store = await Store.open(url)
    async with store.database.engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = 'future'"))
    await store.close()
    with pytest.raises(MigrationError, match="revision future"):
        await Store.open(url)


def test_upgrade_is_idempotent(databases: Databases) -> None:
    url = databases.empty()
    upgrade(url)
    upgrade(url)

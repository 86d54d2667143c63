import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from onyx.jobs.engine import make_engine
from onyx.jobs.errors import StoreUnavailableError
from onyx.jobs.store import Store
from onyx.jobs.tables import DeviceRow
from tests.jobs.postgres import PostgresServer
from tests.jobs.world import RESULT, World, line


async def test_a_database_that_cannot_be_opened_is_unavailable() -> None:
    for url in ("sqlite:////nowhere/at/all.db", "postgresql://onyx@127.0.0.1:1/onyx"):
        store = Store(make_engine(url))
        with pytest.raises(StoreUnavailableError, match="try again"):
            await store.now()
        with pytest.raises(StoreUnavailableError):
            await Store.open(url)
        await store.close()


async def test_a_database_that_was_away_costs_nothing(world: World, postgres: PostgresServer) -> None:
    if world.store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no server to stop")
    claimed = await world.running()
    await world.store.mirror_events(claimed.lease, [line(1)])
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await world.store.heartbeat(claimed.lease)
    finally:
        postgres.start()
    await world.store.heartbeat(claimed.lease)
    assert await world.store.mirror_events(claimed.lease, [line(1), line(2)]) == 1
    assert (await world.store.succeeded(claimed.lease, RESULT)).status == "succeeded"


async def test_an_error_inside_of_a_transaction_leaves_nothing_behind(world: World) -> None:
    async def half(host: str) -> None:
        async with world.store.writing() as tx:
            await tx.session.execute(text("INSERT INTO owner (name) VALUES ('half')"))
            tx.session.add(DeviceRow(host=host, name="cpu:0", job_id="none", attempt=1))

    with pytest.raises(IntegrityError):  # such an attempt does not exist: foreign keys are on
        await half("alpha")
    async with world.store.reading() as session:
        assert (await session.execute(text("SELECT count(*) FROM owner"))).scalar_one() == 0


async def test_sqlite_is_set_up_to_survive(world: World) -> None:
    if world.store.engine.dialect.name != "sqlite":
        pytest.skip("about SQLite")
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10000}
    async with world.store.reading() as session:
        found = {name: (await session.execute(text(f"PRAGMA {name}"))).scalar_one() for name in wanted}
    assert found == wanted


async def test_the_clock_is_the_databases(world: World) -> None:
    before = await world.store.now()
    assert before > 1.7e9
    async with world.store.writing() as tx:
        assert before <= tx.now <= before + 60

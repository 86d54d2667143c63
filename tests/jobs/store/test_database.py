import asyncio
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from onyx.jobs.errors import StoreUnavailableError, StoreUrlError, WrongHomeError
from onyx.jobs.home import Home
from onyx.jobs.store.database import make_engine, parse_url
from onyx.jobs.store.store import Store
from onyx.jobs.store.tables import DeviceRow
from onyx.settings import Settings
from tests.jobs.postgres import PostgresServer
from tests.jobs.store_harness import RESULT, StoreHarness, line


async def test_a_database_that_cannot_be_opened_is_unavailable() -> None:
    for url in ("sqlite:////nowhere/at/all.db", "postgresql://onyx@127.0.0.1:1/onyx"):
        store = Store(make_engine(url))
        try:
            with pytest.raises(StoreUnavailableError, match="try again"):
                await store.now()
            with pytest.raises(StoreUnavailableError):
                await Store.open(url)
        finally:
            await store.close()


@pytest.mark.parametrize("content", [None, b"not a database " * 1000])
def test_a_failed_open_leaves_no_thread_that_answers_a_closed_loop(
    tmp_path: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each open runs on an event loop of its own, which is closed right after."""
    unanswered: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", unanswered.append)
    path = tmp_path / ("missing/onyx.db" if content is None else "onyx.db")
    if content is not None:
        path.write_bytes(content)
    for _ in range(50):
        with pytest.raises(StoreUnavailableError):
            asyncio.run(Store.open(f"sqlite:///{path}"))
    assert [repr(args.exc_value) for args in unanswered] == []


async def test_a_home_that_is_refused_leaves_no_connection_open(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, embedded_runner=False)
    await (await Home.open(settings)).close()
    (tmp_path / "marker").write_text("another store's")
    before = set(threading.enumerate())
    with pytest.raises(WrongHomeError):
        await Home.open(settings)
    opened = [t for t in set(threading.enumerate()) - before if "_connection_worker_thread" in t.name]
    for thread in opened:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in opened)


async def test_an_outage_of_the_database_loses_nothing(harness: StoreHarness, postgres: PostgresServer) -> None:
    if harness.store.database.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no server to stop")
    claimed = await harness.running()
    await harness.store.events.mirror(claimed.lease, [line(1)])
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await harness.store.attempts.heartbeat(claimed.lease)
    finally:
        postgres.start()
    await harness.store.attempts.heartbeat(claimed.lease)
    assert await harness.store.events.mirror(claimed.lease, [line(1), line(2)]) == 1
    assert (await harness.store.attempts.report_succeeded(claimed.lease, RESULT)).status == "succeeded"


async def test_an_error_inside_of_a_transaction_leaves_nothing_behind(harness: StoreHarness) -> None:
    async def half(host: str) -> None:
        async with harness.store.database.writing() as tx:
            await tx.session.execute(text("INSERT INTO owner (name) VALUES ('half')"))
            tx.session.add(DeviceRow(host=host, name="cpu:0", job_id="none", attempt=1))

    with pytest.raises(IntegrityError):  # such an attempt does not exist: foreign keys are on
        await half("alpha")
    async with harness.store.database.reading() as session:
        assert (await session.execute(text("SELECT count(*) FROM owner"))).scalar_one() == 0


async def test_sqlite_is_set_up_to_survive_a_power_cut(harness: StoreHarness) -> None:
    if harness.store.database.engine.dialect.name != "sqlite":
        pytest.skip("about SQLite")
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10000}
    async with harness.store.database.reading() as session:
        found = {name: (await session.execute(text(f"PRAGMA {name}"))).scalar_one() for name in wanted}
    assert found == wanted


async def test_the_clock_is_the_databases(harness: StoreHarness) -> None:
    before = await harness.store.now()
    assert before > 1.7e9
    async with harness.store.database.writing() as tx:
        assert before <= tx.now <= before + 60


def test_addresses_get_the_drivers_that_onyx_uses() -> None:
    assert parse_url("sqlite:////home/x/onyx.db").drivername == "sqlite+aiosqlite"
    for url in ("postgres://u:p@h/d", "postgresql://u:p@h/d", "postgresql+psycopg2://u:p@h/d"):
        assert parse_url(url).drivername == "postgresql+asyncpg"


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d", "secret", "postgresql://u:secret@h:x/d"]
)
def test_other_addresses_are_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)
    assert "sqlite:///path" in str(caught.value)


def test_postgresql_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StoreUrlError, match=r"pip install 'onyx-finetune\[postgres\]'") as caught:
        make_engine("postgresql://u:secret@127.0.0.1/d")
    assert "secret" not in str(caught.value)

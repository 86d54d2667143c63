"""Fixtures: a store on each kind of database, a clock that tests can advance, and support for coroutine tests."""

import asyncio
import inspect
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onyx.jobs.store.migrate import upgrade
from onyx.jobs.store.store import Store
from tests.jobs.postgres import PostgresServer, fast_directory, find_binaries, server_user
from tests.jobs.store_harness import StoreHarness

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on the event loop that its store was opened on."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    loop = pyfuncitem.funcargs.get("loop")
    loop.run(test) if isinstance(loop, asyncio.Runner) else asyncio.run(test)
    return True


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the whole session."""
    binaries, user = find_binaries(), server_user()
    if binaries is None or user is None:
        pytest.skip("needs PostgreSQL's binaries (initdb), and a user postgres when run as root")
    server = PostgresServer(binaries, user)
    yield server
    server.close()


@dataclass(frozen=True)
class Databases:
    """Databases of one kind."""

    kind: str
    migrated: str
    """A migrated database that tests use in turn; each test empties it first."""

    directory: Path
    server: PostgresServer | None

    def empty(self) -> str:
        """A new database without tables."""
        name = f"onyx_{next(_numbers)}"
        return self.server.create(name) if self.server else f"sqlite:///{self.directory / name}.db"


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Every test that uses a store runs once on each kind of database."""
    server: PostgresServer | None = None
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
    with tempfile.TemporaryDirectory(prefix="onyx-stores-", dir=fast_directory()) as directory:
        # A name of its own: a run of several files may come here once per file.
        url = server.create(f"onyx_{next(_numbers)}") if server else f"sqlite:///{directory}/onyx.db"
        upgrade(url)
        yield Databases(request.param, url, Path(directory), server)


@pytest.fixture
def url(databases: Databases) -> str:
    return databases.migrated


@pytest.fixture
def harness(url: str, loop: asyncio.Runner) -> Iterator[StoreHarness]:
    harness = StoreHarness(url)
    loop.run(harness.delete_all_rows())
    yield harness
    loop.run(harness.store.close())


@pytest.fixture
def store(harness: StoreHarness) -> Store:
    return harness.store

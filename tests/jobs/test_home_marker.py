"""The marker of a home: the first store owns the home, and no crash makes it unusable."""

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from onyx.jobs.errors import WrongHomeError
from onyx.jobs.home_marker import check_marker
from onyx.jobs.store.database import make_engine
from onyx.jobs.store.migrate import upgrade
from onyx.jobs.store.store import Store
from onyx.settings import Settings
from tests.jobs.store_harness import StoreHarness, wrap_call


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_the_first_process_marks_the_home_and_later_ones_find_it(harness: StoreHarness, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    await check_marker(harness.store, settings)
    await check_marker(harness.store, settings)
    marker = settings.home / "marker"
    assert marker.read_text() == await harness.store.home_marker()
    assert names_in(settings.home) == ["marker"], "nothing is left beside it"
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700


@pytest.mark.parametrize("left", [0, 1, 31])
async def test_a_marker_that_was_cut_off_is_written_again(harness: StoreHarness, tmp_path: Path, left: int) -> None:
    expected = await harness.store.home_marker()
    (tmp_path / "marker").write_text(expected[:left] + "\0" * (32 - left))
    await harness.job()  # also a store with jobs rewrites its own marker
    await check_marker(harness.store, Settings(home=tmp_path))
    assert (tmp_path / "marker").read_text() == expected


async def test_a_home_of_another_store_is_refused(harness: StoreHarness, tmp_path: Path) -> None:
    (tmp_path / "marker").write_text("0" * 31)
    with pytest.raises(WrongHomeError):
        await check_marker(harness.store, Settings(home=tmp_path))
    (tmp_path / "marker").write_bytes(b"\xff" * 32)
    with pytest.raises(WrongHomeError):
        await check_marker(harness.store, Settings(home=tmp_path))


async def test_a_store_with_jobs_does_not_take_an_empty_home(harness: StoreHarness, tmp_path: Path) -> None:
    await harness.job()
    with pytest.raises(WrongHomeError):
        await check_marker(harness.store, Settings(home=tmp_path))
    assert names_in(tmp_path) == []


class Rendezvous(Store):
    """A store that waits in its list of jobs until the other store has come as far."""

    meeting: asyncio.Barrier

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        wrap_call(self.jobs, "list", self._meet)

    async def _meet(self, call: Callable[[], Awaitable[Any]]) -> Any:
        jobs = await call()
        await self.meeting.wait()
        return jobs


async def test_of_two_stores_that_open_a_new_home_at_once_one_gets_it(tmp_path: Path) -> None:
    meeting = asyncio.Barrier(2)
    stores = []
    for name in "ab":
        url = f"sqlite:///{tmp_path / name}.db"
        await asyncio.to_thread(upgrade, url)
        stores.append(Rendezvous(make_engine(url)))
        stores[-1].meeting = meeting
    settings = Settings(home=tmp_path / "home")
    ends = await asyncio.gather(*(check_marker(store, settings) for store in stores), return_exceptions=True)
    for store in stores:
        await store.close()
    assert [type(end) for end in ends] in ([type(None), WrongHomeError], [WrongHomeError, type(None)])

"""A process that waits for a job replaces a dead runner only if it has asked for one."""

import asyncio
from pathlib import Path

import pytest

from onyx.jobs import home
from onyx.jobs.home import Home
from onyx.jobs.ids import JobKind
from onyx.jobs.runner.autostart import living_clients
from onyx.settings import Settings
from tests.jobs.store_harness import SPEC


def test_a_process_that_only_waits_starts_no_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "RUNNER_CHECK_SECONDS", 0.0)  # at every poll

    async def story() -> None:
        opened = await Home.open(Settings(home=tmp_path))
        job = await opened.store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION)
        await opened.wait(job.id, 0.2)
        await opened.close()

    asyncio.run(story())
    assert living_clients(tmp_path / "run") == []

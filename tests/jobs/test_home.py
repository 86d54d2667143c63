"""Who waits for a job keeps a runner only where it has asked for one."""

import asyncio
from pathlib import Path

import pytest

from onyx.jobs import home
from onyx.jobs.home import Home
from onyx.jobs.ids import JobKind
from onyx.jobs.runner import client_presence
from onyx.settings import Settings
from tests.jobs.store_harness import SPEC


def test_a_process_that_only_looks_on_starts_no_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "RUNNER_CHECK_SECONDS", 0.0)  # at every look

    async def story() -> None:
        opened = await Home.open(Settings(home=tmp_path))
        job = await opened.store.jobs.create(SPEC, "ann", JobKind.ACCUMULATION)
        await opened.wait(job.id, 0.2)
        await opened.close()

    asyncio.run(story())
    assert client_presence.living(tmp_path / "run") == []

"""A process that waits for its job loses nothing when the database goes away meanwhile."""

import asyncio
from pathlib import Path

from onyx.jobs.home import Home
from onyx.jobs.models import Job
from onyx.jobs.runner.lease_keeper import retry_until_available
from onyx.jobs.service import OptimizedFineTuningService
from onyx.settings import Settings
from tests.jobs.postgres import PostgresServer


async def the_job(home: Home) -> Job:
    """The only one, once it is there."""
    async with asyncio.timeout(600):
        while True:
            if found := (await home.store.jobs.list()).jobs:
                return found[0]
            await asyncio.sleep(0.02)


def test_a_database_that_goes_away_while_a_process_waits(postgres: PostgresServer, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url=postgres.create("onyx_waiting"), embedded_runner=False)

    async def story() -> None:
        home = await Home.open(settings)
        async with OptimizedFineTuningService(settings) as service:
            waiting = asyncio.create_task(service.finetune_model_with_accumulation("onyx/tiny", ["one"], {}, 1))
            job = await the_job(home)
            await asyncio.to_thread(postgres.stop)
            await asyncio.wait({waiting}, timeout=2)  # some looks, that find no database
            assert not waiting.done()
            await asyncio.to_thread(postgres.start)
            await retry_until_available(lambda: home.cancel(job.id))
            answer = await asyncio.wait_for(waiting, 60)
            assert (answer["training_id"], answer["status"]) == (job.id, "cancelled")
        await home.close()

    asyncio.run(story())

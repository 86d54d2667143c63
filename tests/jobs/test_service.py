"""The service survives an outage of the database while it waits for a job."""

import asyncio
from pathlib import Path

from onyx.jobs.home import Home
from onyx.jobs.models import Job
from onyx.jobs.retry import retry_until_available
from onyx.jobs.service import OptimizedFineTuningService
from onyx.settings import Settings
from tests.jobs.postgres import PostgresServer


async def only_job(home: Home) -> Job:
    """The only job, once there is one."""
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
            job = await only_job(home)
            await asyncio.to_thread(postgres.stop)
            await asyncio.wait({waiting}, timeout=2)  # long enough for polls without a database
            assert not waiting.done()
            await asyncio.to_thread(postgres.start)
            await retry_until_available(lambda: home.cancel(job.id))
            answer = await asyncio.wait_for(waiting, 60)
            assert (answer["training_id"], answer["status"]) == (job.id, "cancelled")
        await home.close()

    asyncio.run(story())

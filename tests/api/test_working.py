"""How full micro-batches are: from the plan and the last update that the store has."""

import asyncio
from typing import Any

import pytest

from onyx.api.caller import Caller
from onyx.api.desk import Desk
from onyx.api.working import efficiency, running_jobs
from onyx.jobs.home import Home
from onyx.settings import Settings
from onyx.training.attempt import Event
from tests.api.lives import start
from tests.api.service import make_job, make_key, service

ADMIN = Caller(name="root", sees=None)


def update(**data: Any) -> Event:
    return Event(line=1, time=1.0, kind="metrics", message="update 4", data={"update": 4, "loss": 1.0} | data)


def shares(at: Settings, caller: Caller = ADMIN) -> list[float]:
    async def story() -> list[float]:
        home = await Home.open(at)
        try:
            desk = Desk(home)
            return list((await efficiency(desk, await running_jobs(desk, caller))).values())
        finally:
            await home.close()

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("told", "share"),
    [
        (update(trained_tokens=600, micro_batches=2), [0.75]),  # 150 tokens an update, in two with room for 100
        (update(trained_tokens=900, micro_batches=2), [1.0]),  # never more than full
        (update(trained_tokens=600, micro_batches=0), []),
        (update(), []),
        (Event(line=1, time=1.0, kind="message", message="training begins"), []),
    ],
)
def test_real_tokens_over_the_room_for_them(here: Settings, told: Event, share: list[float]) -> None:
    with service(here) as client:
        make_job(client)
    start(here, told)
    assert shares(here) == share


def test_only_jobs_that_run_and_are_the_callers_count(here: Settings) -> None:
    _, ann = make_key(here, "ann")
    with service(here) as client:
        make_job(client, ann)
        assert shares(here) == []
        start(here, update(trained_tokens=600, micro_batches=2))
        make_job(client, ann)
    assert len(shares(here)) == len(shares(here, Caller(name="ann", sees="ann"))) == 1
    assert shares(here, Caller(name="bob", sees="bob")) == []

"""The service in this process, without a runner: what is asked is answered, and nothing trains."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.testclient import TestClient

from onyx.api.app import create_app
from onyx.api.app_context import ContextProvider
from onyx.jobs.home import Home
from onyx.jobs.store.keys import Scope
from onyx.settings import Settings

T = TypeVar("T")

AT = "/gradient-accumulation"
BODY: dict[str, Any] = {"model_name": "onyx/tiny", "dataset_config": {"texts": ["one", "two"]}, "user_id": 1}


def settings(home: Path, **more: Any) -> Settings:
    return Settings.model_validate({"home": home, "cpu_memory": "3GB", "embedded_runner": False} | more)


_free: list[FastAPI] = []


@contextmanager
def service(at: Settings) -> Iterator[TestClient]:
    """A service on these settings, as create_app makes it.

    Building its routes takes longer than most tests, so an app that is free is used again: what belongs to a service
    is opened by its lifespan, on settings of its own.
    """
    app = _free.pop() if _free else create_app()
    vars(app.state.context_provider).update(vars(ContextProvider(at)))
    with TestClient(app) as client:
        yield client
    _free.append(app)


def at_home(at: Settings, story: Callable[[Home], Awaitable[T]]) -> T:
    """Play a story against the store, as an operator's command would."""

    async def play() -> T:
        home = await Home.open(at)
        try:
            return await story(home)
        finally:
            await home.close()

    return asyncio.run(play())


def make_key(at: Settings, owner: str, scope: Scope = Scope.USER) -> tuple[str, dict[str, str]]:
    """A key's id, and the header that it opens doors with."""
    key, secret = at_home(at, lambda home: home.store.keys.create(f"{owner}'s", owner, scope))
    return key.id, {"Authorization": f"Bearer {secret}"}


def make_job(client: TestClient, headers: dict[str, str] | None = None, **more: Any) -> str:
    answer = client.post(f"{AT}/training/with-accumulation", json=BODY | more, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["training_id"])

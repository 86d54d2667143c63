"""The service inside of the test process, without a runner: requests are answered, but no job trains."""

import asyncio
import threading
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


_unused_apps: list[FastAPI] = []


@contextmanager
def service(at: Settings) -> Iterator[TestClient]:
    """A running service with these settings, as `create_app` makes it.

    Building the routes takes longer than most tests, so apps are used again, each time with a new context provider: the
    lifespan opens all that belongs to one service.
    """
    app = _unused_apps.pop() if _unused_apps else create_app()
    vars(app.state.context_provider).update(vars(ContextProvider(at)))
    with TestClient(app) as client:
        yield client
    _unused_apps.append(app)


def at_home(at: Settings, story: Callable[[Home], Awaitable[T]]) -> T:
    """Run a coroutine function with the Home, as an operator's command would."""

    async def run() -> T:
        home = await Home.open(at)
        try:
            return await story(home)
        finally:
            await home.close()

    return asyncio.run(run())


def make_key(at: Settings, owner: str, scope: Scope = Scope.USER) -> tuple[str, dict[str, str]]:
    """A new API key: its id, and the header that uses it."""
    key, secret = at_home(at, lambda home: home.store.keys.create(f"{owner}'s", owner, scope))
    return key.id, {"Authorization": f"Bearer {secret}"}


def make_job(client: TestClient, headers: dict[str, str] | None = None, **more: Any) -> str:
    answer = client.post(f"{AT}/training/with-accumulation", json=BODY | more, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["training_id"])


def database_threads() -> set[threading.Thread]:
    """The threads of open SQLite connections: aiosqlite has one for each."""
    return {thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name}


def still_alive(threads: set[threading.Thread]) -> list[threading.Thread]:
    """Those that do not end: a thread of a closed connection ends at once."""
    for thread in threads:
        thread.join(10)
    return [thread for thread in threads if thread.is_alive()]

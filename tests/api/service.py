"""The service in this process, without a runner: what is asked is answered, and nothing trains."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from starlette.testclient import TestClient

from onyx.api.app import create_app
from onyx.jobs.home import Home
from onyx.jobs.keys import Scope
from onyx.settings import Settings

T = TypeVar("T")

AT = "/gradient-accumulation"
BODY: dict[str, Any] = {"model_name": "onyx/tiny", "dataset_config": {"texts": ["one", "two"]}, "user_id": 1}


def settings(home: Path, **more: Any) -> Settings:
    return Settings.model_validate({"home": home, "cpu_memory": "3GB", "embedded_runner": False} | more)


@contextmanager
def service(at: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(at)) as client:
        yield client


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
    key, secret = at_home(at, lambda home: home.store.create_key(f"{owner}'s", owner, scope))
    return key.id, {"Authorization": f"Bearer {secret}"}


def make_job(client: TestClient, headers: dict[str, str] | None = None, **more: Any) -> str:
    answer = client.post(f"{AT}/training/with-accumulation", json=BODY | more, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["training_id"])

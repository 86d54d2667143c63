"""What the operator's commands share: the settings of this host's service, and its store."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from onyx.cli.output import USAGE, CommandFailure

if TYPE_CHECKING:
    from onyx.jobs.store.store import Store
    from onyx.settings import Settings

T = TypeVar("T")


def read_settings() -> "Settings":
    """From `ONYX_…` in the environment; a CommandFailure that names the variable that is wrong."""
    from pydantic import ValidationError

    from onyx.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        problems = [f"ONYX_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors()]
        raise CommandFailure("; ".join(problems), USAGE) from None


def start_logging(settings: "Settings") -> None:
    """Log lines of a process that serves or trains, to standard error."""
    from onyx import logs

    logs.configure(settings)


def with_store(settings: "Settings", story: "Callable[[Store], Awaitable[T]]") -> T:
    """Do something with the store, whose tables are made when they are not there."""
    from onyx.jobs.errors import BadValueError, StoreError
    from onyx.jobs.home import Home

    async def run() -> T:
        home = await Home.open(settings)
        try:
            return await story(home.store)
        finally:
            await home.close()

    try:
        return asyncio.run(run())
    except BadValueError as error:
        raise CommandFailure(str(error), USAGE) from None
    except StoreError as error:
        raise CommandFailure(f"the job store cannot be used: {error}") from None
    except OSError as error:
        raise CommandFailure(f"{settings.home} cannot be used: {error.strerror}; name another with ONYX_HOME") from None

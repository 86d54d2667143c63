"""For commands that the operator runs on the service's host: its settings, its logging and its job store."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from onyx.cli.output import USAGE, CommandError

if TYPE_CHECKING:
    from onyx.jobs.store.store import Store
    from onyx.settings import Settings

T = TypeVar("T")


def read_settings() -> "Settings":
    """Settings from `ONYX_…` in the environment. A CommandError names every variable that is wrong."""
    from pydantic import ValidationError

    from onyx.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        problems = [f"ONYX_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors()]
        raise CommandError("; ".join(problems), USAGE) from None


def start_logging(settings: "Settings") -> None:
    """Write log lines to standard error, for commands that serve or train in the foreground."""
    from onyx import logs

    logs.configure(settings)


def with_store(settings: "Settings", action: "Callable[[Store], Awaitable[T]]") -> T:
    """Open the job store, creating its tables if needed, and run `action` with it."""
    from onyx.jobs.errors import BadValueError, StoreError
    from onyx.jobs.home import Home

    async def run() -> T:
        home = await Home.open(settings)
        try:
            return await action(home.store)
        finally:
            await home.close()

    try:
        return asyncio.run(run())
    except BadValueError as error:
        raise CommandError(str(error), USAGE) from None
    except StoreError as error:
        raise unusable_store(error) from None
    except OSError as error:
        raise unusable_home(settings, error) from None


def unusable_home(settings: "Settings", error: OSError) -> CommandError:
    return CommandError(f"cannot use {settings.home}: {error.strerror}; choose another directory with ONYX_HOME")


def unusable_store(error: Exception) -> CommandError:
    return CommandError(f"cannot use the job store: {error}")

"""`onyx db`: the tables of the job store."""

import asyncio
from typing import TYPE_CHECKING

import typer

from onyx.cli.operator import read_settings
from onyx.cli.output import CommandFailure, Json, emit, say

if TYPE_CHECKING:
    from onyx.settings import Settings

app = typer.Typer(help="The tables of the job store.", no_args_is_help=True)


@app.command()
def upgrade(as_json: Json = False) -> None:
    """Bring the tables up to this version. Services do so themselves when they start."""
    from onyx.jobs.errors import StoreError
    from onyx.jobs.store.migrate import upgrade as bring_up

    settings = read_settings()
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    try:
        bring_up(settings.store_url)
    except StoreError as error:
        raise CommandFailure(f"the job store cannot be used: {error}") from None
    _tell(settings, as_json)


@app.command()
def status(as_json: Json = False) -> None:
    """Where the store is, and whether its tables are this version's. Exit status 1 when they are not."""
    if not _tell(read_settings(), as_json):
        raise typer.Exit(1)


def _tell(settings: "Settings", as_json: bool) -> bool:
    where, migrated = store_name(settings), is_up_to_date(settings)
    if as_json:
        emit({"store": where, "migrated": migrated})
    else:
        say(f"{where}: {'up to date' if migrated else 'not at this version: run `onyx db upgrade`'}")
    return migrated


def is_up_to_date(settings: "Settings") -> bool:
    """Whether the tables are this version's; a CommandFailure when nobody can say. Makes nothing."""
    from onyx.jobs.errors import StoreError
    from onyx.jobs.store.database import make_engine
    from onyx.jobs.store.migrate import is_migrated

    if settings.database_url is None and not (settings.home / "onyx.db").exists():
        return False

    async def look() -> bool:
        engine = make_engine(settings.store_url)
        try:
            return await is_migrated(engine)
        finally:
            await engine.dispose()

    try:
        return asyncio.run(look())
    except StoreError as error:
        raise CommandFailure(f"the job store cannot be used: {error}") from None


def store_name(settings: "Settings") -> str:
    """Where the store is, without its password."""
    from sqlalchemy import make_url

    return make_url(settings.store_url).render_as_string(hide_password=True)

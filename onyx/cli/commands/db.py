"""`onyx db`: the tables of the job store on the service's host."""

import asyncio
from typing import TYPE_CHECKING

import typer

from onyx.cli.operator import read_settings, unusable_store
from onyx.cli.output import Json, print_json, print_line

if TYPE_CHECKING:
    from onyx.settings import Settings

app = typer.Typer(help="Tables of the job store.", no_args_is_help=True)


@app.command()
def upgrade(as_json: Json = False) -> None:
    """Upgrade the tables to this version. A service also does this when it starts."""
    from onyx.jobs.errors import StoreError
    from onyx.jobs.store import migrate

    settings = read_settings()
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    try:
        migrate.upgrade(settings.store_url)
    except StoreError as error:
        raise unusable_store(error) from None
    _print_result(settings, as_json)


@app.command()
def status(as_json: Json = False) -> None:
    """Show where the store is and whether its tables are at this version. Exit status 1 when they are not."""
    if not _print_result(read_settings(), as_json):
        raise typer.Exit(1)


def _print_result(settings: "Settings", as_json: bool) -> bool:
    url, migrated = store_name(settings), is_up_to_date(settings)
    if as_json:
        print_json({"store": url, "migrated": migrated})
    else:
        print_line(f"{url}: {'up to date' if migrated else 'not at this version: run `onyx db upgrade`'}")
    return migrated


def is_up_to_date(settings: "Settings") -> bool:
    """Whether the tables are at this version. Creates nothing; a CommandError when the store cannot be read."""
    from onyx.jobs.errors import StoreError
    from onyx.jobs.store.database import make_engine
    from onyx.jobs.store.migrate import is_migrated

    if settings.database_url is None and not (settings.home / "onyx.db").exists():
        return False

    async def check() -> bool:
        engine = make_engine(settings.store_url)
        try:
            return await is_migrated(engine)
        finally:
            await engine.dispose()

    try:
        return asyncio.run(check())
    except StoreError as error:
        raise unusable_store(error) from None


def store_name(settings: "Settings") -> str:
    """The store's URL without its password."""
    from sqlalchemy import make_url

    return make_url(settings.store_url).render_as_string(hide_password=True)

"""`onyx keys`: who may speak to the service of this host."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onyx.cli.operator import read_settings, with_store
from onyx.cli.output import CommandFailure, Json, complain, emit, say, table

if TYPE_CHECKING:
    from onyx.jobs.store.keys import ApiKey

app = typer.Typer(help="API keys of this host's service.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    owner: Annotated[str | None, typer.Option(help="Whose jobs it makes; without it, the name's.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It sees everybody's jobs.")] = False,
    as_json: Json = False,
) -> None:
    """Make a key. Its secret is shown this once."""
    from onyx.jobs.store.keys import Scope

    scope = Scope.ADMIN if admin else Scope.USER
    key, secret = with_store(read_settings(), lambda store: store.keys.create(name, owner or name, scope))
    if as_json:
        emit(_shown(key) | {"secret": secret})
        return
    say(secret)
    complain(f"this is the key {key.id} of {key.owner} ({key.scope}): it is not shown again")


@app.command("list")
def list_keys(as_json: Json = False) -> None:
    """All keys, revoked ones too."""
    keys = with_store(read_settings(), lambda store: store.keys.list())
    if as_json:
        emit([_shown(key) for key in keys])
        return
    rows = [(key.id, key.name, key.owner, str(key.scope), _day(key.created_at), _state(key)) for key in keys]
    table(("id", "name", "owner", "scope", "made", "state"), rows)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `list` shows it.")], as_json: Json = False
) -> None:
    """Make a key open nothing any more. The service hears of it within seconds."""
    if not with_store(read_settings(), lambda store: store.keys.revoke(key_id)):
        raise CommandFailure(f"there is no key {key_id!r} that still works: see `onyx keys list`")
    if as_json:
        emit({"id": key_id, "revoked": True})
    else:
        say(f"{key_id} is revoked")


def _shown(key: "ApiKey") -> dict[str, Any]:
    return {name: value for name, value in asdict(key).items() if name != "secret_hash"}


def _state(key: "ApiKey") -> str:
    return "works" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))

"""`onyx keys`: API keys of the service on this host."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onyx.cli.operator import read_settings, with_store
from onyx.cli.output import CommandError, Json, print_json, print_line, print_stderr, print_table

if TYPE_CHECKING:
    from onyx.jobs.store.keys import ApiKey

app = typer.Typer(help="API keys of this host's service.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A name to recognise the key by.")],
    owner: Annotated[str | None, typer.Option(help="Owner of the jobs made with it; default: NAME.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May see and change the jobs of all owners.")] = False,
    as_json: Json = False,
) -> None:
    """Create a key. Its secret is shown only now."""
    from onyx.jobs.store.keys import Scope

    scope = Scope.ADMIN if admin else Scope.USER
    key, secret = with_store(read_settings(), lambda store: store.keys.create(name, owner or name, scope))
    if as_json:
        print_json(_without_hash(key) | {"secret": secret})
        return
    print_line(secret)
    print_stderr(f"this is the secret of key {key.id} of {key.owner} ({key.scope}); it is not shown again")


@app.command("list")
def list_keys(as_json: Json = False) -> None:
    """List all keys, revoked ones too."""
    keys = with_store(read_settings(), lambda store: store.keys.list())
    if as_json:
        print_json([_without_hash(key) for key in keys])
        return
    rows = [(key.id, key.name, key.owner, str(key.scope), _day(key.created_at), _state(key)) for key in keys]
    print_table(("id", "name", "owner", "scope", "made", "state"), rows)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `list` shows it.")], as_json: Json = False
) -> None:
    """Revoke a key. The service refuses it within seconds."""
    if not with_store(read_settings(), lambda store: store.keys.revoke(key_id)):
        raise CommandError(f"no active key has the id {key_id!r}: see `onyx keys list`")
    if as_json:
        print_json({"id": key_id, "revoked": True})
    else:
        print_line(f"{key_id} is revoked")


def _without_hash(key: "ApiKey") -> dict[str, Any]:
    return {name: value for name, value in asdict(key).items() if name != "secret_hash"}


def _state(key: "ApiKey") -> str:
    return "works" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))

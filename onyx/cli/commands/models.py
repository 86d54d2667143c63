"""`onyx models`: what a service can train, and what it has trained."""

from typing import Any

import typer

from onyx.cli.client import Service
from onyx.cli.output import DEFAULT_URL, Json, Key, ServiceFailure, Url, emit, table

app = typer.Typer(help="Models that a service knows.", no_args_is_help=True)


@app.command("list")
def list_models(url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """Base models that the service has, and those that its jobs published."""
    models = _models(Service(url, key))
    if as_json:
        emit(models)
    else:
        table(("id", "by"), [(model["id"], model["owned_by"]) for model in models])


def _models(service: Service) -> list[dict[str, Any]]:
    try:
        return list(service.get_root("/v1/models")["data"])
    except ServiceFailure as failure:
        if failure.code != 404:
            raise
    return _published(service)  # an app that embeds the documented router alone has no /v1


def _published(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page = service.get("/training", status="succeeded", limit=100)
    while True:
        found += [{"id": job["training_id"], "object": "model", "owned_by": "you"} for job in page["data"]]
        if not page["has_more"]:
            return found
        page = service.get("/training", status="succeeded", limit=100, after=found[-1]["id"])

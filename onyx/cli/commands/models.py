"""`onyx models`: base models of a service, and the models that its jobs published."""

from typing import Any

import typer

from onyx.cli.client import ServiceClient
from onyx.cli.output import DEFAULT_URL, Json, Key, ServiceError, Url, print_json, print_table

app = typer.Typer(help="Models of a service.", no_args_is_help=True)


@app.command("list")
def list_models(url: Url = DEFAULT_URL, key: Key = None, as_json: Json = False) -> None:
    """List the service's base models and the models that its jobs published."""
    models = _models(ServiceClient(url, key))
    if as_json:
        print_json(models)
    else:
        print_table(("id", "by"), [(model["id"], model["owned_by"]) for model in models])


def _models(service: ServiceClient) -> list[dict[str, Any]]:
    try:
        return list(service.get_root("/v1/models")["data"])
    except ServiceError as failure:
        if failure.code != 404:
            raise
    return _published(service)  # an app that embeds only the documented router has no /v1


def _published(service: ServiceClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page = service.get("/training", status="succeeded", limit=100)
    while True:
        found += [{"id": job["training_id"], "object": "model", "owned_by": "you"} for job in page["data"]]
        if not page["has_more"]:
            return found
        page = service.get("/training", status="succeeded", limit=100, after=found[-1]["id"])

"""Options that many commands take."""

from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option("--url", envvar="ONYX_URL", help="Where the service is.")]
Key = Annotated[
    str | None, typer.Option("--key", envvar="ONYX_API_KEY", help="The API key.", show_envvar=True, show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, and nothing else, to stdout.")]
JobId = Annotated[str, typer.Argument(help="The job's id.")]

"""The template of the route that a request took, as its caller sees it: `/api/v1/gradient-accumulation/stats/{id}`."""

from starlette.requests import Request


def route_template(request: Request, own: str) -> str:
    """`own` with the prefixes under which its router was included and its app mounted.

    A route knows its own part only, and FastAPI keeps the rest where others should not look. But the path is at hand:
    what comes before the route's own part are the prefixes.
    """
    params = {name: str(value) for name, value in request.path_params.items()}
    try:
        rendered = own.format_map(params)
    except (KeyError, ValueError, IndexError):
        return own
    path: str = request.scope["path"]
    if not rendered or not path.endswith(rendered):
        return own
    prefix = path[: len(path) - len(rendered)]
    for name, value in params.items():
        if f"{{{name}}}" not in own:  # a prefix may have parameters, too
            prefix = "/".join(f"{{{name}}}" if part == value else part for part in prefix.split("/"))
    return prefix + own

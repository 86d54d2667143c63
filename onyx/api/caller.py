"""Who is asking: the owner behind an API key, or, where there are no keys, somebody on this host."""

import ipaddress
from dataclasses import dataclass

from starlette.requests import Request

from onyx.api.errors import ApiError
from onyx.jobs.keys import ApiKey, Scope

ANONYMOUS = "local"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Whoever sent a request."""

    name: str
    """The owner's name; for logs, limits and quotas."""

    sees: str | None
    """Whose jobs and files it may see and change; None for everybody's."""

    key_id: str | None = None
    """The key it came with."""

    anonymous: bool = False

    def owner(self, user_id: int | str | None = None) -> str:
        """Whose a new job is. Without keys the user's own label stands in: for fairness and quotas only."""
        return f"user:{user_id}" if self.anonymous and user_id is not None else self.name


def with_key(request: Request, keys: dict[str, ApiKey]) -> Caller:
    """The caller behind a bearer token; 401 without a valid one."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    found = [key for key in keys.values() if kind.lower() == "bearer" and key.opens(secret.strip())]
    if not found:
        raise ApiError(
            401,
            "this service needs an API key: send the header Authorization: Bearer <key> (onyx keys create makes one)",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    key = found[0]
    return Caller(name=key.owner, sees=None if key.scope is Scope.ADMIN else key.owner, key_id=key.id)


def without_keys(request: Request, *, allow_anonymous: bool) -> Caller:
    """Anybody on this host, and no web page in its browser."""
    caller = Caller(name=ANONYMOUS, sees=None, anonymous=True)
    server = request.scope.get("server")
    if allow_anonymous or server is None or not _is_address(server[0]):
        return caller  # inside of one process, or over a socket file: not from the network
    if request.client is None or not is_loopback(request.client.host):
        raise ApiError(
            401,
            "without API keys only this host is served: make a key with onyx keys create, or set "
            "ONYX_ALLOW_ANONYMOUS=true where somebody else checks who is asking",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not is_loopback(_host_name(request)):
        raise ApiError(
            403,
            "without API keys the Host header must be localhost or a loopback address: a web page must not be able to "
            "post here",
            code="host_not_allowed",
        )
    return caller


def is_loopback(name: str) -> bool:
    """Whether a host's name or address means this host."""
    return name.lower() == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def _host_name(request: Request) -> str:
    host = request.headers.get("host", "")
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

"""Who is asking: the owner behind an API key, or, where there are no keys, somebody on this host."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request

from onyx.api.http.errors import ApiError
from onyx.jobs.store.keys import ApiKey, Scope

ANONYMOUS = "local"

LONGEST_SECRET = 256
"""Characters. Ours are far shorter; nothing longer is worth hashing."""


_HTTPX_CLIENT = ("127.0.0.1", 123)
"""What httpx.ASGITransport calls itself. Neither browsers nor proxies send from a port of the system's."""

_TEST_CLIENT_HOST = "testclient"
"""What Starlette's TestClient calls itself; a header could say so too, but adds no extension to the scope."""


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

    @property
    def counted_as(self) -> str:
        """What its limits are counted under."""
        return self.key_id or self.name

    def owner(self, user_id: int | str | None = None) -> str:
        """Whose a new job is. Without keys the user's own label stands in: for fairness and quotas only."""
        return f"user:{user_id}" if self.anonymous and user_id is not None else self.name


def with_key(request: Request, keys: Iterable[ApiKey]) -> Caller:
    """The caller behind a bearer token; 401 without a valid one. Every key is tried, whichever it is."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    bearer = kind.lower() == "bearer" and len(secret) <= LONGEST_SECRET
    found = [key for key in keys if bearer and key.opens(secret.strip())]
    if not found:
        raise unknown(
            "this service needs an API key: send the header Authorization: Bearer <key> (onyx keys create makes one)"
        )
    key = found[0]
    return Caller(name=key.owner, sees=None if key.scope is Scope.ADMIN else key.owner, key_id=key.id)


def without_keys(request: Request, *, allow_anonymous: bool) -> Caller:
    """Any program on this host, and no web page in its browser. The peer's address decides; without one it is a 401."""
    caller = Caller(name=ANONYMOUS, sees=None, anonymous=True)
    peer = request.client
    if allow_anonymous or _in_process(request) or (peer is None and _unix_socket(request)):
        return caller
    if peer is None or not is_loopback(peer.host):
        raise unknown(
            "without API keys only this host is served: make a key with onyx keys create, or set "
            "ONYX_ALLOW_ANONYMOUS=true where somebody else checks who is asking"
        )
    _refuse_web_pages(request)
    return caller


def is_loopback(name: str) -> bool:
    """Whether a host's name or address means this host."""
    return name.lower() == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def unknown(message: str) -> ApiError:
    """401: nobody that this service knows."""
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _in_process(request: Request) -> bool:
    """Whether a client calls the app itself, without a network, under the address that its library gives by itself.

    The scope's server decides nothing: some servers put the name there that the Host header says.
    """
    if request.client == _HTTPX_CLIENT:
        return True
    test_client = "http.response.debug" in request.scope.get("extensions", ())
    return test_client and request.client is not None and request.client.host == _TEST_CLIENT_HOST


def _unix_socket(request: Request) -> bool:
    """Whether the request came through a socket file, of which the server knows the path and no port."""
    host, port = request.scope.get("server") or ("", 0)
    return port is None and host.startswith("/")


def _refuse_web_pages(request: Request) -> None:
    """A page in this host's browser can send requests here; its own name is in Host (rebinding) or in Origin."""
    origin = request.headers.get("origin")
    if not is_loopback(_host_name(request)):
        raise ApiError(
            403,
            "without API keys the Host header must be localhost or a loopback address: a web page must not be able to "
            "post here",
            code="host_not_allowed",
        )
    if origin is not None and not is_loopback(_origin_name(origin)):
        raise ApiError(
            403, "without API keys web pages of other origins are not served: use an API key", code="origin_not_allowed"
        )


def _host_name(request: Request) -> str:
    host = request.headers.get("host", "")
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _origin_name(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

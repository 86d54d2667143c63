"""Who sent a request: the owner of an API key or, while no keys exist, any program on this host."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request

from onyx.api.http.errors import ApiError
from onyx.jobs.store.keys import ApiKey, Scope

ANONYMOUS = "local"

LONGEST_SECRET = 256
"""Characters. Onyx's own keys are far shorter, so a longer one is refused without hashing it."""

_HTTPX_CLIENT = ("127.0.0.1", 123)
"""The peer address of httpx.ASGITransport. No browser and no proxy sends from a port below 1024."""

_TEST_CLIENT_HOST = "testclient"
"""The peer host of Starlette's TestClient. It counts only with the client's extension, which no header can add."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The sender of a request."""

    name: str
    """The owner's name; for logs, limits and quotas."""

    sees: str | None
    """The owner whose jobs and files it may see and change; None for every owner's."""

    key_id: str | None = None
    """The id of the API key that it sent."""

    anonymous: bool = False

    @property
    def limit_key(self) -> str:
        """The name under which rate limits count it."""
        return self.key_id or self.name

    def owner(self, user_id: int | str | None = None) -> str:
        """The owner of a new job. Without keys it is the client's `user_id`, for fairness and quotas only."""
        return f"user:{user_id}" if self.anonymous and user_id is not None else self.name


def caller_with_key(request: Request, keys: Iterable[ApiKey]) -> Caller:
    """The owner of the bearer token; 401 without a valid one. Every key is compared, so timing tells nothing."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    bearer = kind.lower() == "bearer" and len(secret) <= LONGEST_SECRET
    found = [key for key in keys if bearer and key.opens(secret.strip())]
    if not found:
        raise unauthorized(
            "this service needs an API key: send the header Authorization: Bearer <key> (onyx keys create makes one)"
        )
    key = found[0]
    return Caller(name=key.owner, sees=None if key.scope is Scope.ADMIN else key.owner, key_id=key.id)


def caller_without_keys(request: Request, *, allow_anonymous: bool) -> Caller:
    """Any program on this host, but no web page in its browser. The peer's address decides; 401 if it has none."""
    caller = Caller(name=ANONYMOUS, sees=None, anonymous=True)
    peer = request.client
    if allow_anonymous or _in_process(request) or (peer is None and _unix_socket(request)):
        return caller
    if peer is None or not is_loopback(peer.host):
        raise unauthorized(
            "without API keys only this host is served: make a key with onyx keys create, or set "
            "ONYX_ALLOW_ANONYMOUS=true where a proxy or your app authenticates callers"
        )
    _refuse_web_pages(request)
    return caller


def is_loopback(name: str) -> bool:
    """Whether a host's name or address means this host."""
    return name.lower() == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def unauthorized(message: str) -> ApiError:
    """401: no valid API key."""
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _in_process(request: Request) -> bool:
    """Whether the client calls the app inside of this process, without a network: known by its library's peer address.

    The scope's `server` is not used: some servers fill it from the Host header.
    """
    if request.client == _HTTPX_CLIENT:
        return True
    test_client = "http.response.debug" in request.scope.get("extensions", ())
    return test_client and request.client is not None and request.client.host == _TEST_CLIENT_HOST


def _unix_socket(request: Request) -> bool:
    """Whether the request came through a Unix socket: then the server's address is a path without a port."""
    host, port = request.scope.get("server") or ("", 0)
    return port is None and host.startswith("/")


def _refuse_web_pages(request: Request) -> None:
    """403 for a web page, whose requests a browser on this host may send: Host (DNS rebinding) or Origin tells."""
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

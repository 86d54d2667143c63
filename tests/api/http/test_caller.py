"""Which callers are admitted. The scopes are those of real servers; no header may change the decision."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.testclient import TestClient

from onyx.api.app import create_app
from onyx.api.http.caller import LONGEST_SECRET, caller_with_key, caller_without_keys, is_loopback
from onyx.api.http.errors import ApiError
from onyx.jobs.store.keys import ApiKey, Scope, digest
from onyx.settings import Settings
from tests.api.service import AT, settings


def request(*, server: Any = ("127.0.0.1", 8000), client: Any = ("127.0.0.1", 40000), **headers: str) -> Request:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "server": server, "client": client, "headers": raw})


def key(secret: str, owner: str = "ann", scope: Scope = Scope.USER, revoked_at: float | None = None) -> ApiKey:
    return ApiKey(
        id=f"key-{owner}",
        name="n",
        owner=owner,
        scope=scope,
        secret_hash=digest(secret),
        created_at=0.0,
        revoked_at=revoked_at,
    )


def test_a_key_stands_for_its_owner() -> None:
    keys = [key("bobs", "bob"), key("anns", "ann"), key("roots", "root", Scope.ADMIN)]
    ann = caller_with_key(request(authorization="bearer anns"), keys)
    assert (ann.name, ann.sees, ann.key_id, ann.limit_key) == ("ann", "ann", "key-ann", "key-ann")
    assert ann.owner("another user") == "ann"
    assert caller_with_key(request(authorization="Bearer roots"), keys).sees is None


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic anns", "anns", "Bearer ann", "Bearer annsx", "Bearer \xff\x00"]
)
def test_any_other_header_is_401_and_says_how(header: str) -> None:
    with pytest.raises(ApiError) as refused:
        caller_with_key(request(authorization=header), [key("anns")])
    assert refused.value.status_code == 401
    assert refused.value.headers == {"WWW-Authenticate": "Bearer"}
    assert "Authorization: Bearer" in refused.value.message


def test_a_revoked_or_very_long_key_is_refused() -> None:
    with pytest.raises(ApiError):
        caller_with_key(request(authorization="Bearer anns"), [key("anns", revoked_at=1.0)])
    long = "a" * (LONGEST_SECRET + 1)
    with pytest.raises(ApiError):
        caller_with_key(request(authorization=f"Bearer {long}"), [key(long)])


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000", "LOCALHOST"]
)
def test_this_host_needs_no_key(host: str) -> None:
    caller = caller_without_keys(request(host=host), allow_anonymous=False)
    assert (caller.name, caller.sees) == ("local", None)
    assert caller.owner(7) == "user:7"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "", "[", "::1"]
)
def test_a_web_page_that_rebinds_its_name_is_refused(host: str) -> None:
    with pytest.raises(ApiError) as refused:
        caller_without_keys(request(host=host), allow_anonymous=False)
    assert refused.value.status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[", "http://10.0.0.1:8000", ""])
def test_a_web_page_of_another_origin_is_refused(origin: str) -> None:
    with pytest.raises(ApiError) as refused:
        caller_without_keys(request(host="localhost", origin=origin), allow_anonymous=False)
    assert refused.value.status_code == 403


def test_pages_of_this_service_may_use_the_api() -> None:
    assert caller_without_keys(request(host="localhost:8000", origin="http://localhost:8000"), allow_anonymous=False)


SERVERS = [("127.0.0.1", 8000), ("onyx.example", 8000), ("localhost", 8000), ("10.0.0.1", 8000), ("onyx", None), None]
"""What servers report as their own address. Some take it from the Host header, which the client chooses."""


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", [("10.0.0.9", 40000), ("::ffff:10.0.0.9", 1), ("testclient", 0), ("", 0), None])
def test_other_hosts_need_a_key(client: Any, server: Any) -> None:
    sent = request(client=client, server=server, host="localhost")
    with pytest.raises(ApiError) as refused:
        caller_without_keys(sent, allow_anonymous=False)
    assert refused.value.status_code == 401
    assert caller_without_keys(sent, allow_anonymous=True).anonymous


@pytest.mark.parametrize("server", [*SERVERS, ("0.0.0.0", 8000), ("evil.example", 80)])  # noqa: S104
@pytest.mark.parametrize("client", [("127.0.0.1", 40000), ("127.0.0.1", 0), ("::1", 40000)])
def test_a_web_page_is_refused_for_every_server_address(client: Any, server: Any) -> None:
    with pytest.raises(ApiError) as refused:
        caller_without_keys(request(client=client, server=server, host="evil.example"), allow_anonymous=False)
    assert refused.value.status_code == 403
    assert caller_without_keys(request(client=client, server=server, host="localhost"), allow_anonymous=False)


def test_a_socket_file_is_not_the_network(tmp_path: Path) -> None:
    """With the server that `onyx serve` uses, and any Host header."""
    path = str(tmp_path / "onyx.sock")

    async def send() -> int:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            server = uvicorn.Server(uvicorn.Config(create_app(settings(tmp_path / "home")), log_config=None))
            serving = asyncio.create_task(server.serve([listener]))
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path)) as client:
                status = (await client.get(f"http://any.example{AT}/health")).status_code
            server.should_exit = True
            await serving
            return status

    assert asyncio.run(send()) == 200


def test_a_test_client_with_another_address_is_no_local_client(tmp_path: Path) -> None:
    with TestClient(create_app(settings(tmp_path)), client=("10.0.0.9", 40000)) as client:
        assert client.get(f"{AT}/health").status_code == 401
    with TestClient(create_app(settings(tmp_path)), client=("127.0.0.1", 40000)) as client:
        assert client.get(f"{AT}/health").status_code == 403
        assert client.get(f"{AT}/health", headers={"Host": "localhost"}).status_code == 200


@pytest.mark.parametrize("base", ["http://test", "http://127.0.0.1", "http://localhost:9", "http://10.1.2.3:8000"])
def test_clients_in_this_process_need_no_key(base: str, tmp_path: Path) -> None:
    app = create_app(settings(tmp_path))
    with TestClient(app, base_url=base) as client:
        assert client.get(f"{AT}/health").status_code == 200

    async def send() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return (await client.get(f"{AT}/health")).status_code

    assert asyncio.run(send()) == 200


@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "localhost", "127.255.0.1"])
def test_loopback(name: str) -> None:
    assert is_loopback(name)


@pytest.mark.parametrize("name", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "127.0.0.1.evil", "2130706433"])  # noqa: S104
def test_not_loopback(name: str) -> None:
    assert not is_loopback(name)


def test_settings_start_closed(here: Settings) -> None:
    assert not here.allow_anonymous

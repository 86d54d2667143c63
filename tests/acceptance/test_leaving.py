"""Streams and waits of a client that has disconnected, or whose key was revoked, end by themselves."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.acceptance.api_server import ApiServer, api_server
from tests.acceptance.runner_home import settings
from tests.api.service import AT, BODY, at_home, make_key
from tests.waiting import PATIENCE, wait_for

TRAIN = f"{AT}/training/with-accumulation"
STREAM = {"Accept": "text/event-stream"}
WAIT = "3600"
"""Seconds: longer than any test waits."""

OWNERS = ("ann", "bob", "eve")


@dataclass
class Door:
    """A server with two keys per owner. Each key may have one stream or wait at a time."""

    server: ApiServer
    keys: dict[str, list[tuple[str, dict[str, str]]]]

    def client(self, headers: dict[str, str]) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=PATIENCE)

    def revoke(self, key_id: str) -> None:
        assert at_home(self.server.settings, lambda home: home.store.keys.revoke(key_id))

    def noted(self, **wanted: object) -> list[dict[str, object]]:
        """The lines of the audit log that have these values."""
        lines = map(json.loads, (self.server.settings.home / "audit.jsonl").read_text().splitlines())
        return [line for line in lines if all(line[name] == value for name, value in wanted.items())]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A server without a runner: no stream or wait ends because its job ends."""
    home: Path = tmp_path_factory.mktemp("leaving") / "home"
    keys = {owner: [make_key(settings(home), owner) for _ in range(2)] for owner in OWNERS}
    with api_server(home, embedded_runner=False, streams_per_caller=1) as server:
        yield Door(server, keys)


def is_waiting(client: httpx.Client) -> bool:
    """Whether a stream or wait of this key is open. Then another one, even of no time, is refused."""
    answer = client.post(TRAIN, params={"wait": "0"}, json=BODY)
    assert answer.status_code in (202, 429), answer.text
    return answer.status_code == 429


def test_a_revoked_key_ends_its_stream_and_nobody_elses(door: Door) -> None:
    (key_id, ann), (_, other) = door.keys["ann"]
    with door.client(ann) as client, door.client(other) as beside:
        job = client.post(TRAIN, json=BODY).json()["training_id"]
        events = f"{AT}/training/{job}/events"
        with client.stream("GET", events, headers=STREAM) as one, beside.stream("GET", events, headers=STREAM) as two:
            ending, staying = one.iter_lines(), two.iter_lines()
            assert next(ending) == next(staying)
            door.revoke(key_id)
            assert "event: done" not in list(ending), "ended by the server, not by its job"
            assert client.get(events).status_code == 401
            beside.post(f"{AT}/training/{job}/cancel")
            assert "event: done" in list(staying)


def test_a_revoked_key_ends_its_wait(door: Door) -> None:
    (key_id, bob), (_, other) = door.keys["bob"]
    with door.client(bob) as client, door.client(other) as beside, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, TRAIN, params={"wait": WAIT}, json=BODY)
        with door.client(bob) as second:
            wait_for(lambda: is_waiting(second), "the request waits")
        door.revoke(key_id)
        answer = waiting.result(PATIENCE)
        assert answer.status_code == 401
        assert "revoked" in answer.json()["detail"]
        (line,) = door.noted(key=key_id, status=401)
        assert beside.get(f"{AT}/training/{line['made']}").json()["status"] == "validating"


def test_a_wait_notices_that_its_client_has_gone(door: Door) -> None:
    """The key's place is free again, and the audit log has the request, long before the wait would have ended."""
    (key_id, eve), _ = door.keys["eve"]
    body = json.dumps(BODY).encode()
    head = f"POST {TRAIN}?wait={WAIT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {eve['Authorization']}\r\n"
    head += f"X-Request-Id: gone\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with door.client(eve) as client:
        with door.server.connect() as wire:
            wire.sendall(head.encode() + body)
            wait_for(lambda: is_waiting(client), "the request waits")
            assert not door.noted(request_id="gone")
        wait_for(lambda: not is_waiting(client), "its place is free")
    wait_for(lambda: bool(door.noted(request_id="gone")), "its line is there")
    (line,) = door.noted(request_id="gone")
    assert (line["key"], line["status"]) == (key_id, 202)

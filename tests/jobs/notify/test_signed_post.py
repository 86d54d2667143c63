"""Signed requests to a receiver in a thread."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from onyx.jobs.notify.signed_post import headers_of, key_of, post
from onyx.jobs.notify.url_policy import AddressError

SECRET = "whsec_c2VjcmV0"  # noqa: S105 - a test's own
MESSAGE = {
    "id": "evt_1",
    "object": "event",
    "created_at": 1,
    "type": "fine_tuning.job.succeeded",
    "data": {"id": "ftjob-1"},
}


class Receiver(HTTPServer):
    received: list[tuple[str, dict[str, str], str]]
    status = 200


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.received.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.status)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Not on the terminal."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(("127.0.0.1", 0), Handler) as it:
        it.received = []
        threading.Thread(target=it.serve_forever, daemon=True).start()
        yield it
        it.shutdown()


@pytest.mark.parametrize("secret", [SECRET, "as it is"])
def test_openais_client_accepts_what_is_sent(receiver: Receiver, secret: str) -> None:
    url = f"http://127.0.0.1:{receiver.server_port}/hook?to=me"
    assert post(url, MESSAGE, secret, allow_private=True) == 200
    [(path, headers, body)] = receiver.received
    assert path == "/hook?to=me"
    assert headers["host"] == f"127.0.0.1:{receiver.server_port}"
    client = OpenAI(api_key="none", webhook_secret=secret)
    assert client.webhooks.unwrap(body, headers).type == "fine_tuning.job.succeeded"
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + " ", headers)


def test_a_redirect_is_an_answer_and_not_followed(receiver: Receiver) -> None:
    receiver.status = 307
    assert post(f"http://127.0.0.1:{receiver.server_port}/", MESSAGE, SECRET, allow_private=True) == 307
    assert len(receiver.received) == 1


def test_nothing_is_sent_to_a_private_address(receiver: Receiver) -> None:
    with pytest.raises(AddressError):
        post(f"https://127.0.0.1:{receiver.server_port}/", MESSAGE, SECRET, allow_private=False)
    assert receiver.received == []


def test_a_refused_connection_is_an_error() -> None:
    with pytest.raises(OSError, match="refused"):
        post("http://127.0.0.1:1/", MESSAGE, SECRET, allow_private=True)


def test_signatures_follow_the_standard() -> None:
    headers = headers_of("evt_1", json.dumps(MESSAGE).encode(), SECRET, 1000.9)
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("evt_1", "1000")
    assert headers["webhook-signature"].startswith("v1,")
    assert key_of(SECRET) == b"secret"
    with pytest.raises(ValueError, match="base64"):
        key_of("whsec_!")

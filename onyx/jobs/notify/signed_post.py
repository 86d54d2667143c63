"""One signed POST to one address. Knows no redirect and no proxy: what was checked is what is spoken to."""

import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import json
import socket
import ssl
import threading
import time
from typing import Any

from onyx.jobs.notify.url_policy import Target, addresses_of, parse

PREFIX = "whsec_"
SECONDS = 10.0
"""For each step of a delivery: connecting, sending, waiting for the answer."""

MOST_SECONDS = 30.0
"""For a whole delivery."""


def key_of(secret: str) -> bytes:
    """The bytes that sign: base64 behind `whsec_`, anything else as it is."""
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"a webhook secret that begins with {PREFIX} must go on in base64") from None


def headers_of(message_id: str, body: bytes, secret: str, now: float) -> dict[str, str]:
    """What proves to a receiver who sent this, and when."""
    moment = str(int(now))
    signed = b".".join((message_id.encode(), moment.encode(), body))
    signature = base64.b64encode(hmac.digest(key_of(secret), signed, hashlib.sha256)).decode()
    return {"webhook-id": message_id, "webhook-timestamp": moment, "webhook-signature": f"v1,{signature}"}


def post(url: str, message: dict[str, Any], secret: str, *, allow_private: bool) -> int:
    """The status that the receiver answers. OSError, HTTPException or AddressError when there is no answer. Blocks."""
    target = parse(url, allow_private=allow_private)
    address = addresses_of(target, allow_private=allow_private)[0]
    body = json.dumps(message).encode()
    headers = headers_of(str(message["id"]), body, secret, time.time()) | {
        "Host": target.authority,
        "Content-Type": "application/json",
        "User-Agent": "onyx-webhooks",
    }
    connection = _Connection(target, address)
    overdue = threading.Timer(MOST_SECONDS, connection.abort)
    overdue.start()
    try:
        connection.request("POST", target.path, body, headers)
        return connection.getresponse().status
    finally:
        overdue.cancel()
        connection.close()


class _Connection(http.client.HTTPConnection):
    """Connects to the address that was checked, under the name that was asked for."""

    def __init__(self, target: Target, address: str) -> None:
        super().__init__(target.host, target.port, timeout=SECONDS)
        self._target = target
        self._address = address

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self._target.port), SECONDS)
        if self._target.scheme == "http":
            self.sock = plain
            return
        try:
            self.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=self._target.host)
        except BaseException:
            plain.close()
            raise

    def abort(self) -> None:
        """End it from another thread: a receiver that answers a letter a second must not hold a courier for hours."""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

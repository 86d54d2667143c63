"""One signed POST. It follows no redirect and uses no proxy, so that it reaches the address that was checked."""

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

MAX_SECONDS = 30.0
"""For a whole delivery."""


def key_of(secret: str) -> bytes:
    """The signing key: base64 after `whsec_`, any other secret as it is."""
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"a webhook secret that begins with {PREFIX} must go on in base64") from None


def headers_of(message_id: str, body: bytes, secret: str, now: float) -> dict[str, str]:
    """The signature headers of the Standard Webhooks specification."""
    moment = str(int(now))
    signed = b".".join((message_id.encode(), moment.encode(), body))
    signature = base64.b64encode(hmac.digest(key_of(secret), signed, hashlib.sha256)).decode()
    return {"webhook-id": message_id, "webhook-timestamp": moment, "webhook-signature": f"v1,{signature}"}


def post(url: str, message: dict[str, Any], secret: str, *, allow_private: bool) -> int:
    """Send it; the status of the answer. OSError, HTTPException or AddressError when there is no answer. Blocks."""
    target = parse(url, allow_private=allow_private)
    address = addresses_of(target, allow_private=allow_private)[0]
    body = json.dumps(message).encode()
    headers = headers_of(str(message["id"]), body, secret, time.time()) | {
        "Host": target.authority,
        "Content-Type": "application/json",
        "User-Agent": "onyx-webhooks",
    }
    connection = _Connection(target, address)
    overdue = threading.Timer(MAX_SECONDS, connection.abort)
    overdue.start()
    try:
        connection.request("POST", target.path, body, headers)
        return connection.getresponse().status
    finally:
        overdue.cancel()
        connection.close()


class _Connection(http.client.HTTPConnection):
    """Connects to the address that was checked, with the host's name in TLS and in the Host header."""

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
        """End it from another thread: a receiver that sends a byte per second must not keep a sending thread busy."""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

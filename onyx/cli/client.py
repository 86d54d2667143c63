"""HTTP client of the documented API, for the commands that talk to a service on this host or another."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onyx.cli.output import USAGE, CommandError, ServiceError, UnreachableError

if TYPE_CHECKING:
    import httpx

PREFIX = "/gradient-accumulation"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 180.0
"""Long, because planning a new model may run a probe first."""

SILENCE_SECONDS = 45.0
"""How long an event stream may be silent. The service sends a keep-alive comment every ten seconds."""


class ServiceClient:
    """Every error becomes a CommandError; when the service answered, with the service's own message."""

    def __init__(self, url: str, key: str | None = None) -> None:
        import httpx

        if not url.startswith(("http://", "https://")):
            raise CommandError(f"{url!r} is not a service URL: write it like http://127.0.0.1:8000", USAGE)
        # A command sends a few requests and exits: without keep-alive no connection has to be closed.
        headers = {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        self._url = url.rstrip("/")
        self._http = httpx.Client(headers=headers, timeout=timeout)

    def get(self, path: str, **params: Any) -> Any:
        return self._request("GET", path, params=params)

    def post(self, path: str, body: Any = None) -> Any:
        return self._request("POST", path, json=body)

    def delete(self, path: str) -> Any:
        return self._request("DELETE", path)

    def upload(self, path: Path, name: str) -> str:
        """Upload a file and return its id."""
        with path.open("rb") as file:
            answer = self._request(
                "POST", "/v1/files", root=True, files={"file": (name, file)}, data={"purpose": "fine-tune"}
            )
        return str(answer["id"])

    def get_root(self, path: str) -> Any:
        """GET a path outside of the documented API, such as /v1/models."""
        return self._request("GET", path, root=True)

    @contextmanager
    def stream(self, path: str, *, headers: dict[str, str] | None = None) -> Iterator["httpx.Response"]:
        """A response whose body the caller reads as it arrives."""
        import httpx

        timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        try:
            with self._http.stream(
                "GET", self._url + PREFIX + path, headers=headers or {}, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    response.read()
                _check(response)
                yield response
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _request(self, method: str, path: str, *, root: bool = False, **more: Any) -> Any:
        import httpx

        try:
            response = self._http.request(method, self._url + ("" if root else PREFIX) + path, **more)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        _check(response)
        try:
            return response.json()
        except ValueError:
            raise CommandError(f"{self._url} is not an Onyx service (its answer is not JSON): check --url") from None

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no service answers at {self._url} ({type(error).__name__}): start one with `onyx serve`, "
            "or give the address of a running one with --url or ONYX_URL"
        )


def _check(response: "httpx.Response") -> None:
    if response.status_code >= 400:
        raise ServiceError(_error_message(response), response.status_code)


def _error_message(response: "httpx.Response") -> str:
    """The message of an error answer: `detail` in the documented API, `error.message` under /v1."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error")
        message = answer.get("detail") or (error.get("message") if isinstance(error, dict) else None)
        if isinstance(message, str):
            return message
    return f"the service answered {response.status_code} {response.reason_phrase}"


RECONNECT_SECONDS = 600.0
"""How long `follow` tries to reconnect to a service that has answered before."""

RETRY_SECONDS = (0.2, 5.0)
"""The first and the longest pause between two attempts to connect; each pause is twice the one before."""


@dataclass(frozen=True)
class ServerSentEvent:
    """One message of an event stream."""

    event: str
    data: Any
    id: str | None


def follow(service: ServiceClient, job_id: str, on_disconnect: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Every event of the job from its first until the job has ended, each once.

    When the service stops answering, `on_disconnect` is called once with the reason, and the client reconnects after
    the last event that it received.
    """
    last_id, last_contact, pause, disconnected = "0", None, RETRY_SECONDS[0], False
    while True:
        try:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": last_id}
            with service.stream(f"/training/{job_id}/events", headers=headers) as response:
                last_contact, pause, disconnected = time.monotonic(), RETRY_SECONDS[0], False
                for message in parse(response.iter_lines()):
                    last_contact = time.monotonic()
                    if message.event == "done":
                        return
                    last_id = message.id or last_id
                    yield message.data
        except UnreachableError as error:
            if last_contact is None or time.monotonic() - last_contact > RECONNECT_SECONDS:
                raise
            if not disconnected:
                on_disconnect(str(error))
            disconnected = True
        time.sleep(pause)
        pause = min(2 * pause, RETRY_SECONDS[1])


def parse(lines: Iterable[str]) -> Iterator[ServerSentEvent]:
    """The messages of an event stream, without comments and without a last message that was cut off."""
    event, data, message_id = "message", "", None
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield ServerSentEvent(event, json.loads(data), message_id)
            event, data, message_id = "message", "", None
        elif name == "event":
            event = value
        elif name == "data":
            data += value
        elif name == "id":
            message_id = value

"""The service as commands speak to it: over HTTP, here or far away."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onyx.cli.output import USAGE, AwayFailure, CommandFailure, ServiceFailure

if TYPE_CHECKING:
    import httpx

PREFIX = "/gradient-accumulation"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 180.0
"""A plan that has to be probed first takes its time."""

SILENCE_SECONDS = 45.0
"""A stream says something every ten seconds, if only that it is there."""


class Service:
    """Every answer that is not the one hoped for is a CommandFailure with the service's own sentence."""

    def __init__(self, url: str, key: str | None = None) -> None:
        import httpx

        if not url.startswith(("http://", "https://")):
            raise CommandFailure(f"{url!r} is no address of a service: write it like http://127.0.0.1:8000", USAGE)
        # A command asks a few things and ends: no connection is kept, so none has to be closed.
        headers = {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        self._url = url.rstrip("/")
        self._http = httpx.Client(headers=headers, timeout=timeout)

    def get(self, path: str, **params: Any) -> Any:
        return self._ask("GET", path, params=params)

    def post(self, path: str, body: Any = None) -> Any:
        return self._ask("POST", path, json=body)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def upload(self, path: Path, name: str) -> str:
        """The id of a file that the service has now."""
        with path.open("rb") as file:
            answer = self._ask(
                "POST", "/v1/files", root=True, files={"file": (name, file)}, data={"purpose": "fine-tune"}
            )
        return str(answer["id"])

    def get_root(self, path: str) -> Any:
        """Something that is not part of the documented API."""
        return self._ask("GET", path, root=True)

    @contextmanager
    def stream(self, path: str, *, headers: dict[str, str] | None = None) -> Iterator["httpx.Response"]:
        """An answer that is read as it comes."""
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
            raise self._away(error) from None

    def _ask(self, method: str, path: str, *, root: bool = False, **more: Any) -> Any:
        import httpx

        try:
            response = self._http.request(method, self._url + ("" if root else PREFIX) + path, **more)
        except httpx.TransportError as error:
            raise self._away(error) from None
        _check(response)
        try:
            return response.json()
        except ValueError:
            raise CommandFailure(f"{self._url} does not answer like an Onyx service: is --url right?") from None

    def _away(self, error: Exception) -> AwayFailure:
        return AwayFailure(
            f"no service answers at {self._url} ({type(error).__name__}): start one with `onyx serve`, "
            "or say where it is with --url or ONYX_URL"
        )


def _check(response: "httpx.Response") -> None:
    if response.status_code >= 400:
        raise ServiceFailure(_sentence(response), response.status_code)


def _sentence(response: "httpx.Response") -> str:
    """What the service says, in either of its APIs' shapes."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error")
        said = answer.get("detail") or (error.get("message") if isinstance(error, dict) else None)
        if isinstance(said, str):
            return said
    return f"the service answered {response.status_code} {response.reason_phrase}"


PATIENCE_SECONDS = 600.0
"""How long a service that was there may be away."""

RETRY_SECONDS = (0.2, 5.0)
"""Between two tries: at first, and at most."""


@dataclass(frozen=True)
class Sent:
    """One message of a stream."""

    kind: str
    data: Any
    id: str | None


def follow(service: Service, job_id: str, on_away: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Every event of the job from its first, until it is over. `on_away` hears once when the service is gone."""
    seen, heard_at, pause, away = "0", None, RETRY_SECONDS[0], False
    while True:
        try:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": seen}
            with service.stream(f"/training/{job_id}/events", headers=headers) as response:
                heard_at, pause, away = time.monotonic(), RETRY_SECONDS[0], False
                for sent in parse(response.iter_lines()):
                    heard_at = time.monotonic()
                    if sent.kind == "done":
                        return
                    seen = sent.id or seen
                    yield sent.data
        except AwayFailure as gone:
            if heard_at is None or time.monotonic() - heard_at > PATIENCE_SECONDS:
                raise
            if not away:
                on_away(str(gone))
            away = True
        time.sleep(pause)
        pause = min(2 * pause, RETRY_SECONDS[1])


def parse(lines: Iterable[str]) -> Iterator[Sent]:
    """The messages of an event stream. Comments and messages that were cut off are left out."""
    kind, data, number = "message", "", None
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Sent(kind, json.loads(data), number)
            kind, data, number = "message", "", None
        elif name == "event":
            kind = value
        elif name == "data":
            data += value
        elif name == "id":
            number = value

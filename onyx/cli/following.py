"""A job's events as they happen, each once, across broken connections and restarts of the service."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from onyx.cli.client import Service
from onyx.cli.errors import AwayFailure

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

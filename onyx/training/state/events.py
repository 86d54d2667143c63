"""events.jsonl: what rank 0 reports, one event a line. The runner mirrors the lines into the store."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from onyx import fs
from onyx.finite import finite
from onyx.training.contract import event_kinds
from onyx.training.contract.attempt import Event
from onyx.training.contract.event_kinds import RankEventKind

METRICS_SECONDS = 1.0
"""The shortest time between two metrics events. metrics.csv has every update."""

Level = Literal["info", "warn", "error"]
Data = Mapping[str, Any]


class Events:
    """Appends to a file. Without a path (every rank but the first) it writes nothing."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("ab", buffering=0) if path is not None else None
        self._line = len(read_events(path)) if path is not None else 0
        self._metrics_at = -math.inf

    def emit(
        self,
        kind: RankEventKind,
        message: str,
        data: Data | None = None,
        *,
        level: Level = "info",
        durable: bool = False,
    ) -> None:
        """Append one line with one write. `durable` waits until it is on the disk."""
        if self._file is None:
            return
        self._line += 1
        line = {"line": self._line, "time": time.time(), "kind": kind, "level": level, "message": message}
        self._file.write(json.dumps(line | {"data": finite(data or {})}, allow_nan=False).encode() + b"\n")
        if durable:
            fs.sync_file(self._file)

    def metrics(self, message: str, data: Data, *, last: bool = False) -> None:
        """A metrics event, unless there was one within the last second."""
        now = time.monotonic()
        if last or now - self._metrics_at >= METRICS_SECONDS:
            self._metrics_at = now
            self.emit(event_kinds.METRICS, message, data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_events(path: Path, *kinds: RankEventKind) -> list[Event]:
    """The events of a file, of all kinds or of some. A last line that a killed rank left unfinished is not one."""
    if not path.exists():
        return []
    marks = [json.dumps({"kind": kind})[1:-1].encode() for kind in kinds] or [b""]
    lines = path.read_bytes().split(b"\n")[:-1]
    # A long job emits an event every second: parse only the requested kinds.
    events = [Event.model_validate_json(line) for line in lines if any(mark in line for mark in marks)]
    return [event for event in events if not kinds or event.kind in kinds]

"""Reads events.jsonl, the file in which rank 0 reports what happens to an attempt."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from onyx.training.contract.attempt import Event

EVENTS = "events.jsonl"


@dataclass
class EventFileReader:
    """Where in the file the reader is."""

    path: Path
    offset: int = 0

    def read(self) -> list[Event]:
        """The lines that were completed since the last call. A line that a killed rank left half-written is skipped."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                chunk = file.read()
        except FileNotFoundError:
            return []
        complete = chunk[: chunk.rfind(b"\n") + 1]
        self.offset += len(complete)
        return [event for line in complete.splitlines() if (event := _parse(line))]


def _parse(line: bytes) -> Event | None:
    try:
        return Event.model_validate(json.loads(line))
    except (ValueError, ValidationError):
        return None  # a torn line from a full disk: the events around it still count

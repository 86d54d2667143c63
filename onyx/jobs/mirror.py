"""Reading an attempt's events.jsonl as it grows: complete lines only, each once."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from onyx.training.attempt import Event


@dataclass
class Tail:
    """Where in the file the reader is."""

    path: Path
    offset: int = 0

    def read(self) -> list[Event]:
        """The lines that were completed since the last call. What a killed rank left half-written is never read."""
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

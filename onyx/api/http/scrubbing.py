"""Remove the host's paths and the operator's secrets from answers.

Texts from jobs pass through here, because the error of a training library may name any file.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from onyx.jobs.models import Job
from onyx.jobs.records import StoredEvent
from onyx.logs import hide_secrets
from onyx.settings import Settings

MOST_CHARACTERS = 2000
"""Longest text in an answer."""

SHORTEST_SECRET = 6
"""Characters. A shorter one (a password may be "onyx") would hide normal words; it is hidden inside of URLs only."""

_PATH = re.compile(r"(?<![\w.])/(?:[\w.+@~-]+/)+[\w.+@~-]*")


def scrub(text: str, settings: Settings) -> str:
    """The text with secrets hidden and paths shortened."""
    text = hide_secrets(text, [secret for secret in settings.secrets() if len(secret) >= SHORTEST_SECRET])
    for path, name in _named_directories(settings):
        text = text.replace(path, name)
    return _PATH.sub(_last_part, text)[:MOST_CHARACTERS]


def scrub_all(value: Any, settings: Settings) -> Any:
    """Scrub every text inside of a JSON value."""
    if isinstance(value, str):
        return scrub(value, settings)
    if isinstance(value, dict):
        return {name: scrub_all(each, settings) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [scrub_all(each, settings) for each in value]
    return value


def scrub_event(event: StoredEvent, settings: Settings) -> StoredEvent:
    """The event as its owner may read it."""
    return replace(event, message=scrub(event.message, settings), data=scrub_all(event.data, settings))


def scrub_error(job: Job, settings: Settings) -> Job:
    """The job with an error message that its owner may read."""
    if job.error is None:
        return job
    return replace(job, error=job.error.model_copy(update={"message": scrub(job.error.message, settings)}))


def _named_directories(settings: Settings) -> list[tuple[str, str]]:
    """Directories to replace by a name, the longest first, because one may lie inside of another."""
    named = {
        settings.home: "ONYX_HOME",
        settings.model_root: "ONYX_MODEL_ROOT",
        settings.data_root: "ONYX_DATA_ROOT",
        Path(sys.prefix): "PYTHON",
    }
    found = [(str(path), name) for path, name in named.items() if path is not None and len(path.parts) > 1]
    return sorted(found, key=lambda each: -len(each[0]))


def _last_part(match: re.Match[str]) -> str:
    return f"…/{Path(match.group()).name}"

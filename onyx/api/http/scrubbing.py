"""What answers do not tell: paths of the host and secrets, which are the operator's business.

Sentences that come from the rooms below pass through here: a training library's own error may name any file.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from onyx.jobs.models import Job
from onyx.jobs.records import StoredEvent
from onyx.logs import hide
from onyx.settings import Settings

MOST_CHARACTERS = 2000
"""Of one text."""

SHORTEST_SECRET = 6
"""Characters. A shorter one (a password may be "onyx") stands in any sentence; inside of an address it is hidden."""

_PATH = re.compile(r"(?<![\w.])/(?:[\w.+@~-]+/)+[\w.+@~-]*")


def scrub(text: str, settings: Settings) -> str:
    """The text without what is the operator's business."""
    text = hide(text, [secret for secret in settings.secrets() if len(secret) >= SHORTEST_SECRET])
    for place, name in _places(settings):
        text = text.replace(place, name)
    return _PATH.sub(_last_part, text)[:MOST_CHARACTERS]


def scrub_all(value: Any, settings: Settings) -> Any:
    """The same for every text inside of a JSON value."""
    if isinstance(value, str):
        return scrub(value, settings)
    if isinstance(value, dict):
        return {name: scrub_all(each, settings) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [scrub_all(each, settings) for each in value]
    return value


def scrub_event(event: StoredEvent, settings: Settings) -> StoredEvent:
    """What its job's owner may read of it."""
    return replace(event, message=scrub(event.message, settings), data=scrub_all(event.data, settings))


def scrub_error(job: Job, settings: Settings) -> Job:
    """The job with what its owner may read of how it failed."""
    if job.error is None:
        return job
    return replace(job, error=job.error.model_copy(update={"message": scrub(job.error.message, settings)}))


def _places(settings: Settings) -> list[tuple[str, str]]:
    """Directories with names of their own, the longest first: one may lie inside of another, or have a space in it."""
    named = {
        settings.home: "ONYX_HOME",
        settings.model_root: "ONYX_MODEL_ROOT",
        settings.data_root: "ONYX_DATA_ROOT",
        Path(sys.prefix): "PYTHON",
    }
    found = [(str(place), name) for place, name in named.items() if place is not None and len(place.parts) > 1]
    return sorted(found, key=lambda each: -len(each[0]))


def _last_part(match: re.Match[str]) -> str:
    return f"…/{Path(match.group()).name}"
